#!/usr/bin/env bash
# Prints the path of a program with cert-manager's controllers, built from its Go module where this machine has
# none for the current sources; a second run is a look-up. cert-manager's custom resource definitions lie
# beside it.
#   CERT_MANAGER=$(tests/cluster/cert-manager.sh)
# Cold: about 3 minutes on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building cert-manager's controllers from its Go module (once, about 3 minutes)"
  local module
  go_build cert-manager "" -o "$dir/controller" .
  module=$(cd cert-manager && go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)
  install -m 644 -Dt "$dir/crds" "$module"/deploy/crds/*.yaml
}
kept cert-manager cert-manager.sh cert-manager/*
echo "$dir/controller"
