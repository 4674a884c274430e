#!/bin/sh
# Builds libvgpu.so as it is shipped, and aliquot-hook beside it: they need the C library and
# nothing else, of glibc 2.17 or newer, so that they load in old and slim images and on old hosts.
# Prints the path of the library. Needs readelf, and Python for the cross linker (zig.sh).
#
# usage: build.sh [x86_64|aarch64], this machine's processor if none is named
set -eu
cd "$(dirname "$0")/.."
PATH=$(limiter/zig.sh):$PATH
target=$(rustc --print host-tuple)
target=${1:-${target%%-*}}-unknown-linux-gnu
rustup target list --installed | grep -qx "$target" || rustup target add "$target" >&2
cargo zigbuild --quiet --locked --release -p aliquot-limiter -p aliquot-hook --target "$target.2.17"
folder=$(realpath "${CARGO_TARGET_DIR:-target}")/$target/release
for file in "$folder/libvgpu.so" "$folder/aliquot-hook"; do
    # `readelf` reads the files of other processors too.
    for need in $(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        case $need in
        libc.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux*) ;;
        *) echo "$file needs $need" >&2 && exit 1 ;;
        esac
    done
    newest=$(readelf -V "$file" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -Vu | tail -n 1)
    [ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -n 1)" = 2.17 ] || {
        echo "$file needs glibc $newest" >&2 && exit 1
    }
done
echo "$folder/libvgpu.so"
