#!/bin/sh
# Tests the limiter on a real GPU in less than eight minutes: memory, nvidia-smi, PyTorch, its cost
# without a limit, compute shares and graphs. Needs root because its directory is /.aliquot, as in
# a container. It changes nothing else on the machine and removes the directory at the end.
#
# usage: limiter.sh [FOLDER]
# FOLDER holds libvgpu.so and the program `container-directory`; without it, cargo builds both.
# Needs Python; uses PyTorch if it is installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
need nvidia-smi "NVIDIA's driver"
need python3
[ "$(id -u)" -eq 0 ] || refuse "its directory is /.aliquot: run it as root"
[ ! -e /.aliquot ] || refuse "/.aliquot exists: this is a limited container, or an earlier run was killed"
[ "$(first_gpu_field mig.mode.current)" = Enabled ] && refuse "MIG is enabled on the GPU"

library_of() { ldconfig -p | sed -n "s,.*$1 .*x86-64.* => \(/.*\),\1,p" | head -n 1; }
cuda=$(readlink -f "$(library_of libcuda.so.1)")
nvml=$(readlink -f "$(library_of libnvidia-ml.so.1)")
[ -f "$cuda" ] && [ -f "$nvml" ] || refuse "ldconfig knows no libcuda.so.1 and libnvidia-ml.so.1"
if [ $# -ge 1 ]; then
    library=$1/libvgpu.so make_directory=$1/container-directory
else
    need cargo "or pass a folder with libvgpu.so and container-directory"
    root=$(cd "$here/../.." && pwd)
    build=${CARGO_TARGET_DIR:-$root/target}/release
    (cd "$root" && cargo build --quiet --release --locked -p aliquot-limiter -p aliquot-limiter-tests)
    library=$build/libvgpu.so make_directory=$build/container-directory
fi
[ -f "$library" ] && [ -x "$make_directory" ] || refuse "$library or $make_directory is missing"

temp=$(mktemp -d)
holder=
finish() {
    [ -z "$holder" ] || kill "$holder" 2>/dev/null || true
    rm -rf "$temp" /.aliquot
}
trap finish EXIT
uuid=$(first_gpu)
CUDA_VISIBLE_DEVICES=$uuid
export CUDA_VISIBLE_DEVICES
total=$(first_gpu_field memory.total)
echo "GPU: $(first_gpu_field name), driver $(first_gpu_field driver_version), $total MiB"
others=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader --id="$uuid" | grep -c . || true)
[ "$others" -eq 0 ] || refuse "$others other processes use the GPU, which would distort every measurement"

client() { timeout 60 python3 "$here/limiter.py" "$@" 2>&1; }
field() { echo "$2" | sed -n "s/.*$1=\([^ ]*\).*/\1/p"; }
# share MIB PERCENT sets the share of the GPU; limited COMMAND… runs within it.
share() { "$make_directory" /.aliquot "$library" "$cuda" "$nvml" "$uuid" "$1" "$2" "$context"; }
limited() { LD_LIBRARY_PATH=/.aliquot/driver client "$@"; }

# The memory of a context on this GPU, measured as docs/limiter.md tells administrators to.
mkfifo "$temp/hold"
before=$(first_gpu_field memory.used)
client hold <"$temp/hold" >"$temp/ready" &
holder=$!
exec 3>"$temp/hold"
tries=0
until grep -q ready "$temp/ready" || [ "$tries" -ge 100 ]; do sleep 0.2 && tries=$((tries + 1)); done
context=$(($(first_gpu_field memory.used) - before))
exec 3>&-
wait "$holder" || true
holder=
[ "$context" -gt 0 ] || refuse "a context seems to take no memory on this GPU"
echo "a context takes $context MiB"

share 3000 0
output=$(limited memory || true)
free=$(field free "$output")
if [ "$(field total "$output")" = 3000 ] && [ "$(field more "$output")" = 2 ] &&
    [ "$(field whole "$output")" = 0 ] && [ "$(field after "$output")" = 2 ]; then
    seen memory "of 3000 MiB $free were free beside the context; all of them could be allocated, and no block more"
else
    not_seen memory "$output"
fi

output=$(LD_LIBRARY_PATH=/.aliquot/driver nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader,nounits || true)
lines=$(echo "$output" | grep -c . || true)
if [ "$output" = "0, 3000" ] && [ "$lines" -eq 1 ]; then
    seen nvidia-smi "inside the share it shows one GPU with 0 of 3000 MiB"
else
    not_seen nvidia-smi "it shows: $output"
fi

# A memory limit alone may cost at most one percent.
slower() { awk -v bare="$1" -v ours="$2" 'BEGIN { printf "%.2f", 100 * (bare - ours) / bare }'; }
at_most() { awk -v value="$1" -v most="$2" 'BEGIN { exit !(value <= most) }'; }
best() { # the best of three alternating runs of each side, as `bare ours`
    bare=0 ours=0
    for _ in 1 2 3; do
        one=$(field rate "$(client "$@")") two=$(field rate "$(limited "$@")")
        bare=$(printf '%s\n%s\n' "$bare" "${one:-0}" | sort -g | tail -n 1)
        ours=$(printf '%s\n%s\n' "$ours" "${two:-0}" | sort -g | tail -n 1)
    done
}
cost() { # row, description, client arguments
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
    output=$(limited torch over 64 || true)
    if [ "$(field said "$output")" = OutOfMemoryError ]; then
        seen torch "64 MiB more than the $(field free "$output") that it reported free: OutOfMemoryError"
    else
        not_seen torch "$output"
    fi
    cost gemm "products of 2048 x 2048 in PyTorch" torch gemm 5
else
    skipped torch "no PyTorch that sees the GPU"
    skipped gemm "no PyTorch that sees the GPU"
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
