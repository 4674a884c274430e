#!/bin/sh
# MPS-3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 16 and 17 on a real GPU, with a daemon and folders of
# its own and in the GPU's current compute mode (MPS also serves DEFAULT): nothing on the machine
# changes.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
need nvidia-smi "NVIDIA's driver"
need nvidia-cuda-mps-control "MPS comes with the driver"
need nvcc "the client is CUDA C++"
mode=$(first_gpu_field compute_mode)
case $mode in
Default | Exclusive_Process) ;;
*) refuse "compute mode $mode" ;;
esac
[ "$(first_gpu_field mig.mode.current)" = Enabled ] && refuse "MIG is enabled on the GPU"

temp=$(mktemp -d)
client=$temp/client
bounded nvcc -O2 -o "$client" "$here/client.cu"
CUDA_VISIBLE_DEVICES=$(first_gpu)
CUDA_MPS_PIPE_DIRECTORY=$temp/pipe
CUDA_MPS_LOG_DIRECTORY=$temp/log
export CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
control() { echo "$1" | bounded nvidia-cuda-mps-control; }
finish() {
    control quit >/dev/null 2>&1 || true
    rm -rf "$temp"
}
trap finish EXIT
bounded nvidia-cuda-mps-control -d

# The daemon shows its clients one GPU, which has the number 0 for them.
unset CUDA_VISIBLE_DEVICES
total=$(first_gpu_field memory.total)
even=$((total / 4))
echo "GPU: $(first_gpu_field name), driver $(first_gpu_field driver_version), $total MiB, compute mode $mode"
control "set_default_device_pinned_mem_limit 0 ${even}M" >/dev/null
control "set_default_active_thread_percentage 25" >/dev/null

field() { sed -n "s/.*$1=\([^ ]*\).*/\1/p" "$2"; }
number() { # the same; 0 if the client printed nothing
    said=$(field "$1" "$2")
    echo "${said:-0}"
}
# A new limit of a daemon applies to its next server, so it is set on running servers as well.
percent() {
    control "set_default_active_thread_percentage $1" >/dev/null
    for server in $(control get_server_list); do
        control "set_active_thread_percentage $server $1" >/dev/null
    done
}
daemon() { # arguments…
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        CUDA_VISIBLE_DEVICES=$(first_gpu) bounded nvidia-cuda-mps-control "$@" -d && return 0
        sleep 1 # the previous daemon has not exited yet
    done
    return 1
}
# A client, which ends within a minute: so does each `wait` for clients in the background.
run() { # name, most MiB, ms, fault, variables…
    out=$temp/$1 && most=$2 && ms=$3 && fault=$4 && shift 4
    bounded env "$@" "$client" "$most" "$ms" "$fault" >"$out" 2>&1 || true
}

run alone "$total" 0 no
got=$(field mib "$temp/alone")
if [ "${got:-0}" -gt 0 ] && [ "$got" -le "$even" ] && [ "$(field state "$temp/alone")" = ok ]; then
    seen MPS-3 "a client got $got MiB of its $even, the next allocation failed and it went on"
else
    not_seen MPS-3 "$(cat "$temp/alone"); expected at most $even MiB"
fi

# Both keep their memory for three seconds, so that they have it at the same time.
run one "$total" 3000 no & run two "$total" 3000 no & wait
sum=$(($(number mib "$temp/one") + $(number mib "$temp/two")))
if [ "$sum" -gt "$even" ]; then
    seen MPS-4 "two clients got $sum MiB together: the limit of $even applies to each"
else
    not_seen MPS-4 "two clients got $sum MiB together"
fi

run lower "$total" 0 no CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G
got=$(field mib "$temp/lower")
if [ "${got:-0}" -gt 0 ] && [ "$got" -le 1024 ]; then
    seen MPS-5 "0=1G gave $got MiB"
else
    not_seen MPS-5 "0=1G: $(cat "$temp/lower")"
fi

eighth=$((total / 8 - 1024))
[ "$eighth" -ge 64 ] || eighth=64
for n in 1 2 3 4 5 6 7 8; do
    run "of8-$n" "$eighth" 2000 no "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=${eighth}M" &
done
wait
well=$(cat "$temp"/of8-* | grep -c 'state=ok' || true)
if [ "$well" -eq 8 ]; then
    seen MPS-6 "eight clients of $eighth MiB ran at once"
else
    not_seen MPS-6 "$well of eight ran: $(cat "$temp"/of8-*)"
fi

percent 100
run full 64 3000 no
percent 25
run quarter 64 3000 no
run q1 64 3000 no & run q2 64 3000 no & wait
full=$(number rounds "$temp/full")
[ "$full" -gt 0 ] || full=1
part=$(($(number rounds "$temp/quarter") * 100 / full))
least=$(cat "$temp/q1" "$temp/q2" | sed -n 's/.*rounds=\([^ ]*\).*/\1/p' | sort -n | head -n 1)
beside=$((${least:-0} * 100 / full))
if [ "$part" -ge 18 ] && [ "$part" -le 32 ] && [ "$beside" -ge 18 ]; then
    seen MPS-10 "25 % alone did $part % of the work of 100 %, the slower of two $beside %"
else
    not_seen MPS-10 "25 % alone did $part %, the slower of two $beside %"
fi

run neighbour 64 3000 no & run greedy "$total" 0 no && wait
if [ "$(field state "$temp/neighbour")" = ok ] && [ "$(field state "$temp/greedy")" = ok ]; then
    seen MPS-12 "one client reached its limit, its neighbour went on"
else
    not_seen MPS-12 "$(cat "$temp/neighbour" "$temp/greedy")"
fi

run bystander 64 4000 no & run faulty 64 0 fault && wait
state=$(field state "$temp/bystander")
# The server accepts no client until the last of its clients has exited.
for _ in 1 2 3 4 5; do
    run after 64 200 no
    [ "$(field state "$temp/after")" = ok ] && break
    sleep 1
done
if [ "$(field state "$temp/after")" = ok ]; then
    seen MPS-13 "one client faulted, its neighbour ended with ${state:-nothing}, and the next ran"
else
    not_seen MPS-13 "after a fault: $(cat "$temp/after")"
fi

run shown 64 3000 no &
server=''
for _ in 1 2 3 4 5 6 7 8 9 10; do
    server=$(control get_server_list | head -n 1)
    [ -n "$server" ] && clients=$(control "get_client_list $server" | grep -c . || true)
    [ -n "$server" ] && [ "${clients:-0}" -ge 1 ] && break
    sleep 0.2
done
if [ "${clients:-0}" -ge 1 ]; then
    seen MPS-14 "the daemon lists $clients clients of server $server"
else
    not_seen MPS-14 "no client is listed"
fi
wait

if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    chmod -R a+rwX "$temp"
    control quit >/dev/null
    daemon -multiuser-server || refuse "no daemon for all users"
    bounded setpriv --reuid 65534 --regid 65534 --clear-groups "$client" 64 3000 no >"$temp/nobody" 2>&1 &
    run root 64 3000 no
    wait
    if [ "$(field state "$temp/nobody")" = ok ] && [ "$(field state "$temp/root")" = ok ]; then
        seen MPS-16 "clients of two users ran"
    else
        not_seen MPS-16 "$(cat "$temp/nobody" "$temp/root")"
    fi
else
    skipped MPS-16 "needs root and setpriv"
fi

run outside 64 0 no CUDA_MPS_PIPE_DIRECTORY=/nonexistent
if [ "$(field state "$temp/outside")" = ok ]; then
    seen MPS-17 "without the daemon's folder a process runs, but not as its client"
elif [ "$mode" = Exclusive_Process ]; then
    seen MPS-17 "without the daemon's folder a process cannot use the GPU"
else
    not_seen MPS-17 "$(cat "$temp/outside")"
fi

# Kills this daemon by its own file: the machine may run others.
pid=$(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid" 2>/dev/null || true)
if [ -n "$pid" ]; then
    servers=$(pgrep -P "$pid" || true)
    kill -9 "$pid"
    for server in $servers; do kill -9 "$server" 2>/dev/null || true; done
    daemon || not_seen MPS-11 "no daemon starts after one was killed"
    run again 64 200 no
    if [ "$(field state "$temp/again")" = ok ]; then
        seen MPS-11 "the daemon was killed and started again, and a client ran"
    else
        not_seen MPS-11 "after a kill: $(cat "$temp/again")"
    fi
else
    skipped MPS-11 "the daemon leaves no file with its process id"
fi
exit "$failed"
