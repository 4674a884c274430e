#!/usr/bin/env bash
# Ends everything that belongs to the cluster in directory STATE: parts under test,
# the node with its containers, mounts, cgroup and interfaces, the control plane.
# Can be run at any time and any number of times.
#   down.sh STATE [remove|keep]     keep: the logs stay
set -u
[ -d "${1:?usage: down.sh STATE [remove|keep]}" ] || exit 0
STATE=$(cd "$1" && pwd)
how=${2:-remove}
[ -e "$STATE/aliquot-cluster" ] || { echo "$STATE holds no aliquot cluster" >&2; exit 1; }
trap '' HUP INT TERM
exec 9>"$STATE/.down"
flock 9 # the watchdog and a user may both call; who starts from here on sees .down and ends
[ -e "$STATE/aliquot-cluster" ] || exit 0
failed=
locks=/tmp/aliquot-cluster

await() { # await WHAT CONDITION...: 120 s of sleep
  local what=$1; shift
  for _ in $(seq 2400); do "$@" && return; sleep 0.05; done
  echo "$what: still there after 120 s" >&2
  failed=1
}
ended() { # ended PID START: a zombie has ended; another start time is another process
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  set -- "$2" ${stat##*) }
  [ "$2" = Z ] || [ "${21}" != "$1" ]
}
end() { # end NAME...: kills by the pid files that the processes wrote themselves
  local name pid start
  for name; do
    { read -r pid start <"$STATE/run/$name.pid"; } 2>/dev/null || continue
    ended "$pid" "$start" || kill -9 "$pid"
    await "$name ($pid)" ended "$pid" "$start"
    rm -f "$STATE/run/$name.pid"
  done
}
# Shims and runc carry the path of this cluster's containerd in their arguments.
runtime() {
  printf '%s/containerd/\n' "$STATE" | grep -lsF -f - /proc/[0-9]*/cmdline | cut -d/ -f3
}
cgroups() { awk -v c="/$cgroup" '$3 ~ /^cgroup2?$/ {print $2 c}' /proc/mounts; }
members() { cgroups | while read -r g; do [ ! -d "$g" ] || find "$g" -name cgroup.procs -exec cat {} + 2>/dev/null; done | sort -u; }
none_left() { # none_left LISTER: kills what it lists
  local pids; pids=$("$1")
  [ -z "$pids" ] || { kill -9 $pids 2>/dev/null; false; }
}
no_cgroup() {
  local g left=
  for g in $(cgroups); do
    [ ! -d "$g" ] || { find "$g" -depth -type d -exec rmdir {} + 2>/dev/null; [ ! -d "$g" ] || left=1; }
  done
  [ -z "$left" ]
}
no_route() { ! grep -qE "[[:space:]][0-9A-F]{2}0[0-2]$(printf %02X "$subnet")0A[[:space:]]" /proc/net/route; }

for f in "$STATE"/run/part-*.pid; do [ ! -e "$f" ] || end "$(basename "$f" .pid)"; done
for f in "$STATE"/run/undo-*; do [ ! -e "$f" ] || sh "$f" || failed=1; done # what a part has left on the machine
if [ -e "$STATE/run/node" ]; then
  read -r cgroup subnet <"$STATE/run/node"
  end kubelet containerd
  await "container runtime" none_left runtime
  await "containers" none_left members
  end mounts # the node's mounts live in its mount namespace and go with it
  await "cgroup $cgroup" no_cgroup
  await "pod interfaces (10.$subnet.0.0/22)" no_route # they go with the pods' network namespaces
  exec 7>"$locks/node-entry.lock" 8>>"$locks/node.lock"
  flock 7 # no other cluster joins or leaves meanwhile
  end node-lock
  if flock -n 8; then # no other cluster with nodes is left
    if [ -e "$locks/sysctl" ]; then
      while read -r file value; do echo "$value" >"$file"; done <"$locks/sysctl"
    fi
    if [ -e "$locks/made" ]; then # mount points that were not there before
      while read -r dir; do rmdir "$dir" 2>/dev/null; done <"$locks/made"
    fi
    rm -f "$locks/sysctl" "$locks/made"
  fi
  exec 7>&- 8>&-
fi
if [ -e "$STATE/run/service" ]; then # while etcd holds the lock on the ports, and so on the address
  end apiserver
  ip address del "$(cat "$STATE/run/service")" dev lo 2>/dev/null
fi
end scheduler controller-manager apiserver etcd # etcd last: it holds the lock on the ports

[ -z "$failed" ] || how=keep
cd "$STATE" || exit 1
rm -rf --one-file-system parts pki etcd run containerd cni kubelet cdi images manifests kubeconfigs kubectl hosts ./*.yaml
if [ "$how" = remove ]; then rm -rf --one-file-system log down.sh; fi
rm -f aliquot-cluster .down
rmdir "$STATE" 2>/dev/null
[ -z "$failed" ]
