#!/bin/sh
# MPS-3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 16 and 17 on a real card. A daemon of our own with its
# own folders, in the compute mode that the card has: nothing of the machine is changed.
# MPS serves in the mode DEFAULT as well.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"
need nvidia-smi "NVIDIA's driver"
need nvidia-cuda-mps-control "MPS comes with the driver"
need nvcc "the client is CUDA C++"
mode=$(of_first_card compute_mode)
case $mode in
Default | Exclusive_Process) ;;
*) refuse "compute mode $mode" ;;
esac
[ "$(of_first_card mig.mode.current)" = Enabled ] && refuse "the card is cut by MIG"

room=$(mktemp -d)
client=$room/client
nvcc -O2 -o "$client" "$here/client.cu"
CUDA_VISIBLE_DEVICES=$(first_card)
CUDA_MPS_PIPE_DIRECTORY=$room/pipe
CUDA_MPS_LOG_DIRECTORY=$room/log
export CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
control() { echo "$1" | nvidia-cuda-mps-control; }
finish() {
    control quit >/dev/null 2>&1 || true
    rm -rf "$room"
}
trap finish EXIT
nvidia-cuda-mps-control -d

# The daemon shows one card to its clients; that is number 0 for them.
unset CUDA_VISIBLE_DEVICES
total=$(of_first_card memory.total)
even=$((total / 4))
echo "card: $(of_first_card name), driver $(of_first_card driver_version), $total MiB, compute mode $mode"
control "set_default_device_pinned_mem_limit 0 ${even}M" >/dev/null
control "set_default_active_thread_percentage 25" >/dev/null

field() { sed -n "s/.*$1=\([^ ]*\).*/\1/p" "$2"; }
number() { # the same; 0 where a client said nothing
    said=$(field "$1" "$2")
    echo "${said:-0}"
}
# A limit that a daemon is told is that of its next server: those that run are told, too.
percent() {
    control "set_default_active_thread_percentage $1" >/dev/null
    for server in $(control get_server_list); do
        control "set_active_thread_percentage $server $1" >/dev/null
    done
}
daemon() { # arguments…
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        CUDA_VISIBLE_DEVICES=$(first_card) nvidia-cuda-mps-control "$@" -d && return 0
        sleep 1 # the one before has not gone yet
    done
    return 1
}
run() { # name, most MiB, ms, fault, variables…
    out=$room/$1 && most=$2 && ms=$3 && fault=$4 && shift 4
    env "$@" "$client" "$most" "$ms" "$fault" >"$out" 2>&1 || true
}

run alone "$total" 0 no
got=$(field mib "$room/alone")
if [ "${got:-0}" -gt 0 ] && [ "$got" -le "$even" ] && [ "$(field state "$room/alone")" = ok ]; then
    seen MPS-3 "a client got $got MiB of its $even, the next allocation failed and it went on"
else
    not_seen MPS-3 "$(cat "$room/alone"); expected at most $even MiB"
fi

# Both hold what they got for three seconds, so that they hold it at once.
run one "$total" 3000 no & run two "$total" 3000 no & wait
sum=$(($(number mib "$room/one") + $(number mib "$room/two")))
if [ "$sum" -gt "$even" ]; then
    seen MPS-4 "two clients got $sum MiB together: the cap of $even is each one's"
else
    not_seen MPS-4 "two clients got $sum MiB together"
fi

run lower "$total" 0 no CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G
got=$(field mib "$room/lower")
if [ "${got:-0}" -gt 0 ] && [ "$got" -le 1024 ]; then
    seen MPS-5 "0=1G gave $got MiB"
else
    not_seen MPS-5 "0=1G: $(cat "$room/lower")"
fi

eighth=$((total / 8 - 1024))
[ "$eighth" -ge 64 ] || eighth=64
for n in 1 2 3 4 5 6 7 8; do
    run "of8-$n" "$eighth" 2000 no "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=${eighth}M" &
done
wait
well=$(cat "$room"/of8-* | grep -c 'state=ok' || true)
if [ "$well" -eq 8 ]; then
    seen MPS-6 "eight clients of $eighth MiB ran at once"
else
    not_seen MPS-6 "$well of eight ran: $(cat "$room"/of8-*)"
fi

skipped MPS-7 "the sum over a container's clients is ours, not the daemon's: tests/limiter"

percent 100
run full 64 3000 no
percent 25
run quarter 64 3000 no
run q1 64 3000 no & run q2 64 3000 no & wait
full=$(number rounds "$room/full")
[ "$full" -gt 0 ] || full=1
part=$(($(number rounds "$room/quarter") * 100 / full))
least=$(cat "$room/q1" "$room/q2" | sed -n 's/.*rounds=\([^ ]*\).*/\1/p' | sort -n | head -n 1)
beside=$((${least:-0} * 100 / full))
if [ "$part" -ge 18 ] && [ "$part" -le 32 ] && [ "$beside" -ge 18 ]; then
    seen MPS-10 "25 % alone did $part % of the work of 100 %, the slower of two $beside %"
else
    not_seen MPS-10 "25 % alone did $part %, the slower of two $beside %"
fi

run neighbour 64 3000 no & run greedy "$total" 0 no && wait
if [ "$(field state "$room/neighbour")" = ok ] && [ "$(field state "$room/greedy")" = ok ]; then
    seen MPS-12 "one client met its cap, its neighbour went on"
else
    not_seen MPS-12 "$(cat "$room/neighbour" "$room/greedy")"
fi

run bystander 64 4000 no & run faulty 64 0 fault && wait
state=$(field state "$room/bystander")
# The server takes nobody until the last of its clients has gone.
for _ in 1 2 3 4 5; do
    run after 64 200 no
    [ "$(field state "$room/after")" = ok ] && break
    sleep 1
done
if [ "$(field state "$room/after")" = ok ]; then
    seen MPS-13 "one client faulted, its neighbour ended with ${state:-nothing}, and the next ran"
else
    not_seen MPS-13 "after a fault: $(cat "$room/after")"
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
    chmod -R a+rwX "$room"
    control quit >/dev/null
    daemon -multiuser-server || refuse "no daemon for all users"
    setpriv --reuid 65534 --regid 65534 --clear-groups "$client" 64 3000 no >"$room/nobody" 2>&1 &
    run root 64 3000 no
    wait
    if [ "$(field state "$room/nobody")" = ok ] && [ "$(field state "$room/root")" = ok ]; then
        seen MPS-16 "clients of two users ran"
    else
        not_seen MPS-16 "$(cat "$room/nobody" "$room/root")"
    fi
else
    skipped MPS-16 "needs root and setpriv"
fi

run outside 64 0 no CUDA_MPS_PIPE_DIRECTORY=/nonexistent
if [ "$(field state "$room/outside")" = ok ]; then
    seen MPS-17 "without the daemon's folder a process is no client of it, and runs"
elif [ "$mode" = Exclusive_Process ]; then
    seen MPS-17 "without the daemon's folder a process does not get onto the card"
else
    not_seen MPS-17 "$(cat "$room/outside")"
fi

# Ours, by its own file: the machine may run other daemons.
pid=$(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid" 2>/dev/null || true)
if [ -n "$pid" ]; then
    servers=$(pgrep -P "$pid" || true)
    kill -9 "$pid"
    for server in $servers; do kill -9 "$server" 2>/dev/null || true; done
    daemon || not_seen MPS-11 "no daemon starts where one was killed"
    run again 64 200 no
    if [ "$(field state "$room/again")" = ok ]; then
        seen MPS-11 "the daemon was killed and started again, and a client ran"
    else
        not_seen MPS-11 "after a kill: $(cat "$room/again")"
    fi
else
    skipped MPS-11 "the daemon leaves no file with its process id"
fi
exit "$failed"
