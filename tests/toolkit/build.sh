#!/usr/bin/env bash
# Prints the folder that has NVIDIA's container toolkit: in newest/ and in oldest/ the programs
# nvidia-container-runtime, nvidia-container-runtime-hook, nvidia-ctk and nvidia-cdi-hook of that
# release, in newest/ also inject (cmd/inject), and a link to runc (tests/cluster/runc.sh). Built from
# their Go modules where this machine has none for the current sources; a second run is a look-up.
#   FOLDER=$(tests/toolkit/build.sh)
# Needs a C compiler: the programs open NVML through cgo.
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about 2 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
runc=$(../cluster/runc.sh)

key=$(cat build.sh {newest,oldest}/go.* newest/cmd/*/*.go <(go version) <(echo "$runc") | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/toolkit-$key
mkdir -p "$dir"
(
  flock 9 # two runs on one machine build once
  [ ! -e "$dir/.complete" ] || exit 0
  module=github.com/NVIDIA/nvidia-container-toolkit
  for release in newest oldest; do
    version=$(sed -n "s|^.*$module v\([0-9.]*\).*|\1|p" $release/go.mod | head -1)
    echo "building NVIDIA's container toolkit $version from its Go module (once, about a minute)" >&2
    mkdir -p "$dir/$release"
    # Lazy, as NVIDIA links them: the symbols of NVML are not there before it is opened.
    (cd $release && CGO_ENABLED=1 CGO_CFLAGS='-O2 -Wno-deprecated-declarations' go build -trimpath -gcflags=all=-dwarf=false \
      -ldflags="-s -w -extldflags=-Wl,-z,lazy -X $module/internal/info.version=$version" -o "$dir/$release/" \
      $module/cmd/{nvidia-container-runtime,nvidia-container-runtime-hook,nvidia-ctk,nvidia-cdi-hook}) >&2
  done
  # The flags of GO_VET in the Makefile.
  (cd newest && CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -o "$dir/newest/" ./cmd/inject) >&2
  ln -sfn "$runc" "$dir/runc"
  : >"$dir/.complete"
) 9>"$dir/.lock"
echo "$dir"
