#!/usr/bin/env bash
# Prints the path of Karpenter with its kwok provider, built from its Go module where
# this machine has none for the current sources; a second run is a look-up. Karpenter's
# custom resource definitions lie beside it.
#   KARPENTER=$(tests/cluster/karpenter.sh)
# Cold: about 3 minutes on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building Karpenter from its Go module (once, about 3 minutes)"
  go_build karpenter "" -o "$dir/karpenter" sigs.k8s.io/karpenter/kwok
  local module
  module=$(cd karpenter && go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)
  install -m 644 -Dt "$dir/crds" "$module"/kwok/apis/crds/*.yaml "$module"/kwok/charts/crds/*.yaml
}
kept karpenter karpenter.sh karpenter/go.*
echo "$dir/karpenter"
