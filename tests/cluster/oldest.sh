#!/usr/bin/env bash
# Prints a folder like build.sh's in which Kubernetes is the oldest that the chart
# installs on: kubebox with its API server, controller manager, scheduler, kubelet and
# kubectl, and beside it the newest's etcd, clustertool and containerd.
#   ALIQUOT_KUBERNETES=oldest cargo test -p aliquot-e2e --test node
# Cache as build.sh's. Cold: about 8 minutes more on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
newest=$(./build.sh)

key=$(cat oldest.sh oldest/go.* oldest/*.go <(go version) <(echo "$newest") | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/oldest-$key
if [ ! -e "$dir/.complete" ]; then
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9
fi
if [ ! -e "$dir/.complete" ]; then
  k=$(sed -n 's|^\s*k8s.io/kubernetes v1\.\([0-9.]*\).*|\1|p' oldest/go.mod | head -1)
  echo "building Kubernetes 1.$k from Go modules (once, about 8 minutes)" >&2
  export CGO_ENABLED=0
  ld="-s -w"
  for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ld+=" -X $p.gitVersion=v1.$k -X $p.gitMajor=1 -X $p.gitMinor=${k%%.*} -X $p.gitTreeState=clean"
  done
  # providerless: without the clouds that were built in then.
  (cd oldest && go build -trimpath -tags providerless -gcflags=all=-dwarf=false -ldflags="$ld" -o "$dir/kubernetes" .) >&2
  for tool in clustertool containerd containerd-shim-runc-v2 ctr; do
    ln -sfn "$newest/$tool" "$dir/$tool"
  done
  # Tests bind an agent's token to its Node; in a cluster it is bound to the agent's pod, which
  # says the node from 1.30 on. That tokens can be bound to a Node came later.
  cat >"$dir/kubebox" <<END
#!/bin/sh
case \$1 in
  etcd) exec "$newest/kubebox" "\$@" ;;
  apiserver) exec "$dir/kubernetes" "\$@" --feature-gates=ServiceAccountTokenNodeBinding=true ;;
  *) exec "$dir/kubernetes" "\$@" ;;
esac
END
  chmod +x "$dir/kubebox"
  : >"$dir/.complete"
fi
echo "$dir"
