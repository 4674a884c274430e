#!/usr/bin/env bash
# Prints the path of cert-manager's controller, built from its Go module where this
# machine has none for the current sources; a second run is a look-up. cert-manager's
# custom resource definitions lie beside it.
#   CERT_MANAGER=$(tests/cluster/cert-manager.sh)
# Cold: about 3 minutes on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building cert-manager's controller from its Go module (once, about 3 minutes)"
  local name=github.com/cert-manager/cert-manager module
  go_build cert-manager "" -o "$dir/controller" $name/controller-binary
  module=$(cd cert-manager && go list -m -f '{{.Dir}}' $name)
  install -m 644 -Dt "$dir/crds" "$module"/deploy/crds/*.yaml
  # What only cert-manager's chart fills in.
  sed -i '/{{/d' "$dir"/crds/*
}
kept cert-manager cert-manager.sh cert-manager/go.*
echo "$dir/controller"
