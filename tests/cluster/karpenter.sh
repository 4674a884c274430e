#!/usr/bin/env bash
# Prints the path of Karpenter with its kwok provider, built from its Go module where
# this machine has none for the current sources; a second run is a look-up. Karpenter's
# custom resource definitions lie beside it.
#   KARPENTER=$(tests/cluster/karpenter.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about 3 minutes on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"

key=$(cat karpenter.sh karpenter/go.* <(go version) | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/karpenter-$key
if [ ! -e "$dir/.complete" ]; then
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9 # two runs on one machine build once
fi
if [ ! -e "$dir/.complete" ]; then
  echo "building Karpenter from its Go module (once, about 3 minutes)" >&2
  # Flags as in build.sh, so that what both need is compiled once.
  (cd karpenter && CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -ldflags="-s -w" \
    -o "$dir/karpenter" sigs.k8s.io/karpenter/kwok) >&2
  module=$(cd karpenter && go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)
  install -m 644 -Dt "$dir/crds" "$module"/kwok/apis/crds/*.yaml "$module"/kwok/charts/crds/*.yaml
  : >"$dir/.complete"
fi
echo "$dir/karpenter"
