#!/bin/sh
# The limiter on a real card, in under eight minutes: memory, nvidia-smi, PyTorch, what it costs
# where nothing is limited, shares of the card's time, graphs. Needs root, for its folder is
# /.aliquot, as in a container; nothing else of the machine is changed, and it is removed again.
#
# usage: limiter.sh [FOLDER], with libvgpu.so and the program `seat`; without one both are built
# here (cargo). Python is needed; PyTorch is used where it is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
need nvidia-smi "NVIDIA's driver"
need python3
[ "$(id -u)" -eq 0 ] || refuse "its folder is /.aliquot: run it as root"
[ ! -e /.aliquot ] || refuse "/.aliquot is there: this is a limited container, or an earlier run was killed"
[ "$(of_first_card mig.mode.current)" = Enabled ] && refuse "the card is cut by MIG"

library_of() { ldconfig -p | sed -n "s,.*$1 .*x86-64.* => \(/.*\),\1,p" | head -n 1; }
cuda=$(readlink -f "$(library_of libcuda.so.1)")
nvml=$(readlink -f "$(library_of libnvidia-ml.so.1)")
[ -f "$cuda" ] && [ -f "$nvml" ] || refuse "ldconfig knows no libcuda.so.1 and libnvidia-ml.so.1"
if [ $# -ge 1 ]; then
    library=$1/libvgpu.so seat=$1/seat
else
    need cargo "or give a folder with libvgpu.so and seat"
    root=$(cd "$here/../.." && pwd)
    build=${CARGO_TARGET_DIR:-$root/target}/release
    (cd "$root" && cargo build --quiet --release --locked -p aliquot-limiter -p aliquot-limiter-tests)
    library=$build/libvgpu.so seat=$build/seat
fi
[ -f "$library" ] && [ -x "$seat" ] || refuse "no $library and $seat"

room=$(mktemp -d)
holder=
finish() {
    [ -z "$holder" ] || kill "$holder" 2>/dev/null || true
    rm -rf "$room" /.aliquot
}
trap finish EXIT
uuid=$(first_card)
CUDA_VISIBLE_DEVICES=$uuid
export CUDA_VISIBLE_DEVICES
total=$(of_first_card memory.total)
echo "card: $(of_first_card name), driver $(of_first_card driver_version), $total MiB"
others=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader --id="$uuid" | grep -c . || true)
[ "$others" -eq 0 ] || refuse "$others processes are on the card: nothing here could be measured"

client() { timeout 60 python3 "$here/limiter.py" "$@" 2>&1; }
field() { echo "$2" | sed -n "s/.*$1=\([^ ]*\).*/\1/p"; }
# A share of the card: MiB and percent of its time. limited COMMAND… runs within it.
share() { "$seat" /.aliquot "$library" "$cuda" "$nvml" "$uuid" "$1" "$2" "$context"; }
limited() { LD_LIBRARY_PATH=/.aliquot/driver client "$@"; }

# What a context takes of this card, as docs/limiter.md tells administrators to measure it.
mkfifo "$room/hold"
before=$(of_first_card memory.used)
client hold <"$room/hold" >"$room/ready" &
holder=$!
exec 3>"$room/hold"
tries=0
until grep -q ready "$room/ready" || [ "$tries" -ge 100 ]; do sleep 0.2 && tries=$((tries + 1)); done
context=$(($(of_first_card memory.used) - before))
exec 3>&-
wait "$holder" || true
holder=
[ "$context" -gt 0 ] || refuse "a context seems to take nothing of this card"
echo "a context takes $context MiB"

share 3000 0
said=$(limited memory || true)
free=$(field free "$said")
if [ "$(field total "$said")" = 3000 ] && [ "$(field more "$said")" = 2 ] &&
    [ "$(field whole "$said")" = 0 ] && [ "$(field after "$said")" = 2 ]; then
    seen memory "of 3000 MiB $free were free beside the context; all of them could be had, and no block more"
else
    not_seen memory "$said"
fi

said=$(LD_LIBRARY_PATH=/.aliquot/driver nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader,nounits || true)
lines=$(echo "$said" | grep -c . || true)
if [ "$said" = "0, 3000" ] && [ "$lines" -eq 1 ]; then
    seen nvidia-smi "inside it shows one card with 0 of 3000 MiB"
else
    not_seen nvidia-smi "it shows: $said"
fi

# What a memory limit alone may cost: none of a percent.
slower() { awk -v bare="$1" -v ours="$2" 'BEGIN { printf "%.2f", 100 * (bare - ours) / bare }'; }
at_most() { awk -v value="$1" -v most="$2" 'BEGIN { exit !(value <= most) }'; }
best() { # the best of three runs of each side, in turn, as `bare ours`
    bare=0 ours=0
    for _ in 1 2 3; do
        one=$(field rate "$(client "$@")") two=$(field rate "$(limited "$@")")
        bare=$(printf '%s\n%s\n' "$bare" "${one:-0}" | sort -g | tail -n 1)
        ours=$(printf '%s\n%s\n' "$ours" "${two:-0}" | sort -g | tail -n 1)
    done
}
cost() { # row, what, client's words
    row=$1 what=$2 && shift 2
    best "$@"
    loss=$(slower "$bare" "$ours")
    if [ "$ours" != 0 ] && at_most "$loss" 1; then
        seen "$row" "$what: $bare a second bare, $ours with a memory limit alone, $loss % less"
    else
        not_seen "$row" "$what: $bare a second bare, $ours with a memory limit alone, $loss % less"
    fi
}
share "$((total / 2))" 0
cost small-kernels "kernels of 10 us" rate k_us_10 3

if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    said=$(limited torch over 64 || true)
    if [ "$(field said "$said")" = OutOfMemoryError ]; then
        seen torch "64 MiB more than the $(field free "$said") that it called free: OutOfMemoryError"
    else
        not_seen torch "$said"
    fi
    cost gemm "products of 2048 x 2048 in PyTorch" torch gemm 5
else
    skipped torch "no PyTorch that sees the card"
    skipped gemm "no PyTorch that sees the card"
fi

near() { awk -v got="${1:-0}" -v asked="$2" 'BEGIN { off = got - asked; exit !(off <= 2 && off >= -2) }'; }
accurate() { # row, percent, command, kernel
    share "$((total / 2))" "$2"
    got=$(field busy "$(limited "$3" "$4" 8)")
    if near "$got" "$2"; then
        seen "$1" "$2 % gave $got %, by $3 of $4"
    else
        not_seen "$1" "$2 % gave ${got:-nothing} %, by $3 of $4"
    fi
}
for percent in 10 25 50 75 90; do
    accurate "share-$percent" "$percent" busy k_us_1000
done
accurate share-long 30 busy k_us_20000
accurate graphs 50 graph k_us_1000
exit "$failed"
