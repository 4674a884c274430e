#!/usr/bin/env bash
# Prints the path of a runc that knows user namespaces with volumes (1.2 and newer;
# Debian's is older), built from its Go module where this machine has none. Needs a
# C compiler, and installs libseccomp's headers; cold less than a minute. Kept beside
# the binaries of build.sh.
set -euo pipefail
cd "$(dirname "$0")"

missing=
for p in libseccomp-dev pkg-config; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' $p 2>/dev/null)" = installed ] || missing+=" $p"
done
if [ -n "$missing" ]; then
  { apt-get update && apt-get install -y --no-install-recommends $missing; } >&2
fi

key=$(cat runc.sh runc/go.* <(go version) | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/runc-$key
mkdir -p "$dir"
(
  flock 9 # two runs on one machine build once
  [ ! -e "$dir/.complete" ] || exit 0
  (cd runc && CGO_ENABLED=1 go build -tags seccomp -trimpath -gcflags=all=-dwarf=false -ldflags='-s -w' \
    -o "$dir/" github.com/opencontainers/runc) >&2
  : >"$dir/.complete"
) 9>"$dir/.lock"
echo "$dir/runc"
