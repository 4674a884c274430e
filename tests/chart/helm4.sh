#!/usr/bin/env bash
# Prints the path of Helm 4, built from its Go module where this machine has none of this version; a second
# run is a look-up. Go's checksum database vouches for the module.
#   HELM=$(tests/chart/helm4.sh)
# Cold: about 2 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building Helm 4 from its Go module (once, about 2 minutes)"
  GOBIN=$dir CGO_ENABLED=0 go install -trimpath -gcflags=all=-dwarf=false -ldflags="-s -w" helm.sh/helm/v4/cmd/helm@v4.3.1
}
kept helm4 helm4.sh
echo "$dir/helm"
