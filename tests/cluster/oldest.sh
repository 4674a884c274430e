#!/usr/bin/env bash
# Prints a folder like build.sh's in which Kubernetes is the oldest that the chart
# installs on: kubebox with its API server, controller manager, scheduler, kubelet and
# kubectl, and beside it the newest's etcd, clustertool and containerd.
#   ALIQUOT_KUBERNETES=oldest cargo test -p aliquot-e2e --test node
# Cold: about 8 minutes more on 2 cores.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh
newest=$(./build.sh)

build() {
  echo "building the oldest Kubernetes from Go modules (once, about 8 minutes)"
  # providerless: without the clouds that were built in then.
  kubernetes_build oldest -tags providerless -o "$dir/kubernetes" .
  local tool
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
}
kept oldest oldest.sh oldest/go.* oldest/*.go <(echo "$newest")
echo "$dir"
