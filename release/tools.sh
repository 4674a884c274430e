#!/usr/bin/env bash
# Prints the folder that has crane, which pushes images, and cosign, which signs. Built from their Go
# modules, which tools/go.sum pins, where this machine has none for the current sources; a second run is
# a look-up.
#   TOOLS=$(release/tools.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about 8 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"

key=$(cat tools.sh tools/go.* <(go version) | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/release-$key
mkdir -p "$dir"
(
  flock 9 # two runs on one machine build once
  [ ! -e "$dir/.complete" ] || exit 0
  echo "building crane and cosign from their Go modules (once, about 8 minutes)" >&2
  (cd tools && CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -ldflags="-s -w" -o "$dir/" tool) >&2
  : >"$dir/.complete"
) 9>"$dir/.lock"
echo "$dir"
