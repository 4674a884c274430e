#!/usr/bin/env bash
# Prints the folder that has what the tests run: links newest and oldest to the folders of these releases
# of NVIDIA's container toolkit (hack/toolkit.sh), one to runc (tests/cluster/runc.sh), and inject, built
# where this machine has none for the current sources; a second run is a look-up.
#   FOLDER=$(tests/toolkit/build.sh)
# Cold: about 2 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh
newest=$(../../hack/toolkit.sh)
oldest=$(../../hack/toolkit.sh oldest)
runc=$(../cluster/runc.sh)

build() {
  # In the module of the newest release, for the CDI library that this uses.
  go_build ../../hack/toolkit "" -o "$dir/inject" "$PWD/inject/main.go"
  ln -sfn "$newest" "$dir/newest"
  ln -sfn "$oldest" "$dir/oldest"
  ln -sfn "$runc" "$dir/runc"
}
kept toolkit-tests build.sh inject/main.go <(echo "$newest $oldest $runc")
echo "$dir"
