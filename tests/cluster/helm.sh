#!/usr/bin/env bash
# Prints the path of helm, built from its Go module where this machine has none
# for the current sources; a second run is a look-up.
#   HELM=$(tests/cluster/helm.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about 2 minutes on 2 cores.
# It is a module of its own: its wishes change nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"

key=$(cat helm.sh helm/go.* <(go version) | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/helm-$key
if [ ! -e "$dir/.complete" ]; then
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9 # two runs on one machine build once
fi
if [ ! -e "$dir/.complete" ]; then
  echo "building helm from its Go module (once, about 2 minutes)" >&2
  # Flags as in build.sh, so that what both need is compiled once. Without a version of
  # Kubernetes it takes every cluster that it is not connected to for an old one.
  version=$(sed -n 's|^.*helm.sh/helm/v3 \(v[0-9.]*\).*|\1|p' helm/go.mod)
  minor=$(sed -n 's/^.*k8s.io\/api v0\.\([0-9]*\)\..*/\1/p' helm/go.mod)
  util=helm.sh/helm/v3/pkg/chartutil
  (cd helm && CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false \
    -ldflags="-s -w -X helm.sh/helm/v3/internal/version.version=$version -X $util.k8sVersionMajor=1 -X $util.k8sVersionMinor=$minor" \
    -o "$dir/" helm.sh/helm/v3/cmd/helm) >&2
  : >"$dir/.complete"
fi
echo "$dir/helm"
