#!/usr/bin/env bash
# Prints the path of a runc that knows user namespaces with volumes (1.2 and newer;
# Debian's is older), built from its Go module where this machine has none. Needs a
# C compiler, and installs libseccomp's headers; cold less than a minute. Kept beside
# the binaries of build.sh.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  cgo=1 go_build runc "" -tags seccomp -o "$dir/" github.com/opencontainers/runc
}
debian libseccomp-dev pkg-config
kept runc runc.sh runc/go.*
echo "$dir/runc"
