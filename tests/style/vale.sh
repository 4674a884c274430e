#!/usr/bin/env bash
# Prints the path of vale, built from its Go module where this machine has none of this version; a second
# run is a look-up. Go's checksum database vouches for the module.
#   VALE=$(tests/style/vale.sh)
# Needs a C compiler. Cold: some minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building vale from its Go module (once, some minutes)"
  GOBIN=$dir CGO_ENABLED=1 go install -trimpath -ldflags="-s -w" github.com/vale-cli/vale/v3/cmd/vale@v3.20.0
}
kept vale vale.sh
echo "$dir/vale"
