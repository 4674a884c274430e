#!/usr/bin/env bash
# Prints the path of a container registry, CNCF's distribution, built from its Go module where this
# machine has none for the current sources; a second run is a look-up.
#   REGISTRY=$(tests/cluster/registry.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about a minute on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"

key=$(cat registry.sh registry/go.* <(go version) | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/registry-$key
if [ ! -e "$dir/.complete" ]; then
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9 # two runs on one machine build once
fi
if [ ! -e "$dir/.complete" ]; then
  echo "building the container registry from its Go module (once, about a minute)" >&2
  # Flags as in build.sh, so that what both need is compiled once.
  (cd registry && CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -ldflags="-s -w" \
    -o "$dir/" github.com/distribution/distribution/v3/cmd/registry) >&2
  : >"$dir/.complete"
fi
echo "$dir/registry"
