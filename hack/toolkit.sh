#!/usr/bin/env bash
# Prints the folder that has NVIDIA's container toolkit: nvidia-ctk and nvidia-cdi-hook, which the image
# has, and for tests nvidia-container-runtime and nvidia-container-runtime-hook. Built from its Go module
# where this machine has none for the current sources; a second run is a look-up.
#   FOLDER=$(hack/toolkit.sh [MODULE])
# MODULE: the folder of another go.mod that names a release, toolkit if none is named.
# Needs a C compiler: the programs open NVML through cgo. Cold: about a minute on 2 cores.
set -euo pipefail
module=$(realpath "${1:-$(dirname "$0")/toolkit}")
cd "$(dirname "$0")"
. ./cache.sh

build() {
  local version name=github.com/NVIDIA/nvidia-container-toolkit
  version=$(sed -n "s|^.*$name v\([0-9.]*\).*|\1|p" "$module/go.mod" | head -1)
  echo "building NVIDIA's container toolkit $version from its Go module (once, about a minute)"
  # Lazy, as NVIDIA links them: the symbols of NVML are not there before it is opened.
  cgo=1 CGO_CFLAGS='-O2 -Wno-deprecated-declarations' go_build "$module" \
    "-extldflags=-Wl,-z,lazy -X $name/internal/info.version=$version" -o "$dir/" \
    $name/cmd/{nvidia-container-runtime,nvidia-container-runtime-hook,nvidia-ctk,nvidia-cdi-hook}
}
kept toolkit toolkit.sh "$module"/go.*
echo "$dir"
