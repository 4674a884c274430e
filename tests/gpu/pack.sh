#!/bin/sh
# Puts all that facts.sh, time.sh and limited.sh need into FOLDER, in less than 50 MiB: the scripts,
# libvgpu.so as it is shipped, and two programs of tests/limiter, which need this machine's libc or
# a newer one.
#
# usage: pack.sh FOLDER [LIBVGPU PROGRAMS]
# LIBVGPU, and the folder PROGRAMS with container-directory and arbiter, are taken as they are;
# without them, cargo builds all three.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?a folder}"
folder=$(cd "$1" && pwd)
if [ $# -ge 3 ]; then
    library=$2 programs=$3
else
    cd "$here/../.."
    library=$(limiter/build.sh)
    cargo build --quiet --release --locked -p aliquot-limiter-tests --bin container-directory --bin arbiter
    programs=$(realpath "${CARGO_TARGET_DIR:-target}")/release
fi
for file in facts.sh time.sh limited.sh facts.py timing.py limited.py parts.py probe.py workload.py triton_program.py; do
    cp "$here/$file" "$folder"
done
strip -o "$folder/libvgpu.so" "$library"
for program in container-directory arbiter; do
    strip -o "$folder/$program" "$programs/$program"
    chmod 755 "$folder/$program"
done
size=$(du -sk "$folder" | cut -f 1)
[ "$size" -lt 51200 ] || { echo "$folder has $size KiB; expected: less than 51200" >&2 && exit 1; }
