#!/usr/bin/env bash
# Prints the path of a container registry, CNCF's distribution, built from its Go module where this
# machine has none for the current sources; a second run is a look-up. Installs skopeo, which pushes to it.
#   REGISTRY=$(tests/cluster/registry.sh)
# Cold: about a minute on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building the container registry from its Go module (once, about a minute)"
  go_build registry "" -o "$dir/" github.com/distribution/distribution/v3/cmd/registry
}
debian skopeo
kept registry registry.sh registry/go.*
echo "$dir/registry"
