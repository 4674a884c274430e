#!/bin/sh
# Puts all that a machine with a GPU needs into FOLDER, in less than 50 MiB: these scripts,
# libvgpu.so as it is shipped, and three programs of tests/limiter, which need this machine's libc
# or a newer one.
#
# usage: pack.sh FOLDER [LIBVGPU PROGRAMS]
# LIBVGPU, and the folder PROGRAMS with the programs, are taken as they are; without them, cargo
# builds all.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
all="container-directory arbiter nvml-facts"
mkdir -p "${1:?a folder}"
folder=$(cd "$1" && pwd)
if [ $# -ge 3 ]; then
    library=$2 programs=$3
else
    cd "$here/../.."
    library=$(limiter/build.sh)
    # shellcheck disable=SC2046 # one word for each program
    cargo build --quiet --release --locked -p aliquot-limiter-tests $(printf -- '--bin %s ' $all)
    programs=$(realpath "${CARGO_TARGET_DIR:-target}")/release
fi
cp "$here"/*.py "$here"/*.sh "$here"/*.cu "$here/README.md" "$folder"
strip -o "$folder/libvgpu.so" "$library"
for program in $all; do
    strip -o "$folder/$program" "$programs/$program"
    chmod 755 "$folder/$program"
done
size=$(du -sk "$folder" | cut -f 1)
[ "$size" -lt 51200 ] || { echo "$folder has $size KiB; expected: less than 51200" >&2 && exit 1; }
