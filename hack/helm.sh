#!/usr/bin/env bash
# Prints the path of helm, built from its Go module where this machine has none
# for the current sources; a second run is a look-up.
#   HELM=$(hack/helm.sh)
# Cold: about 2 minutes on 2 cores.
# It is a module of its own: its dependencies change nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"
. ./cache.sh

build() {
  echo "building helm from its Go module (once, about 2 minutes)"
  # Without a version of Kubernetes it takes every cluster that it is not connected to for an old one.
  local version minor util=helm.sh/helm/v3/pkg/chartutil
  version=$(sed -n 's|^.*helm.sh/helm/v3 \(v[0-9.]*\).*|\1|p' helm/go.mod)
  minor=$(sed -n 's/^.*k8s.io\/api v0\.\([0-9]*\)\..*/\1/p' helm/go.mod)
  go_build helm "-X helm.sh/helm/v3/internal/version.version=$version -X $util.k8sVersionMajor=1 -X $util.k8sVersionMinor=$minor" \
    -o "$dir/" helm.sh/helm/v3/cmd/helm
}
kept helm helm.sh helm/go.*
echo "$dir/helm"
