#!/usr/bin/env bash
# Prints the folder that holds the cluster's binaries: kubebox (etcd, API server,
# controller manager, scheduler, kubelet, kubectl), clustertool, containerd, its
# shim and ctr. Installs the Debian packages and builds the two Go modules where
# this machine has none for the current sources; a second run is a look-up.
#   BIN=$(tests/cluster/build.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about 5 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"

missing=
for p in runc busybox-static containernetworking-plugins iptables; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' $p 2>/dev/null)" = installed ] || missing+=" $p"
done
if [ -n "$missing" ]; then
  { apt-get update && apt-get install -y --no-install-recommends $missing; } >&2
fi

key=$(cat build.sh kubernetes/go.* kubernetes/cmd/*/*.go runtime/go.* <(go version) | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/cluster-$key
if [ ! -e "$dir/.complete" ]; then
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9 # two runs on one machine build once
fi
if [ ! -e "$dir/.complete" ]; then
  echo "building the test cluster's Kubernetes and containerd from Go modules (once, about 5 minutes)" >&2
  export CGO_ENABLED=0
  k=$(sed -n 's|^\s*k8s.io/kubernetes v1\.\([0-9.]*\).*|\1|p' kubernetes/go.mod | head -1)
  ld="-s -w" # without a version the API server calls itself v0.0.0-master
  for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ld+=" -X $p.gitVersion=v1.$k -X $p.gitMajor=1 -X $p.gitMinor=${k%%.*} -X $p.gitTreeState=clean"
  done
  # -dwarf=false: objects without debug information (smaller cache, less CPU).
  (cd kubernetes && go build -trimpath -gcflags=all=-dwarf=false -ldflags="$ld" -o "$dir/" ./cmd/...) >&2
  c=$(sed -n 's|^\s*github.com/containerd/containerd/v2 \(v[0-9.]*\).*|\1|p' runtime/go.mod | head -1)
  (cd runtime && go build -trimpath -gcflags=all=-dwarf=false \
    -ldflags="-s -w -X github.com/containerd/containerd/v2/version.Version=$c" -o "$dir/" \
    github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}) >&2
  : >"$dir/.complete"
fi
echo "$dir"
