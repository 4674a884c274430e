#!/usr/bin/env bash
# Prints the folder that holds the cluster's binaries: kubebox (etcd, API server,
# controller manager, scheduler, kubelet, kubectl), clustertool, containerd, its
# shim and ctr. Installs the Debian packages and builds the two Go modules where
# this machine has none for the current sources; a second run is a look-up.
#   BIN=$(tests/cluster/build.sh)
# Cold: about 5 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building the test cluster's Kubernetes and containerd from Go modules (once, about 5 minutes)"
  kubernetes_build kubernetes -o "$dir/" ./cmd/...
  local c
  c=$(sed -n 's|^\s*github.com/containerd/containerd/v2 \(v[0-9.]*\).*|\1|p' runtime/go.mod | head -1)
  go_build runtime "-X github.com/containerd/containerd/v2/version.Version=$c" -o "$dir/" \
    github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}
}
debian runc busybox-static containernetworking-plugins iptables
kept cluster build.sh kubernetes/go.* kubernetes/cmd/*/*.go runtime/go.*
echo "$dir"
