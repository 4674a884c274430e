#!/usr/bin/env bash
# Prints the path of kube-router, which enforces NetworkPolicies, built from its Go module where this
# machine has none for the current sources; a second run is a look-up. Installs the Debian packages of
# the programs that it runs.
#   KUBE_ROUTER=$(tests/cluster/kube-router.sh)
# Cold: about 3 minutes on 2 cores.
# It is a module of its own: what it needs changes nothing of the cluster's Kubernetes.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building kube-router from its Go module (once, about 3 minutes)"
  go_build kube-router "" -o "$dir/" github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
}
debian iptables ipset
kept kube-router kube-router.sh kube-router/go.*
echo "$dir/kube-router"
