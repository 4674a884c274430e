#!/bin/sh
# Builds libvgpu.so as it is shipped, and the programs of the OCI hooks beside it. aliquot-hook is
# static. The others need the C library and nothing else, of glibc 2.17 or newer, so that they load in
# old and slim images and on old hosts: the library is loaded by programs of images, and
# aliquot-hook-limit loads the driver's NVML.
# Prints the path of the library. Needs ar, readelf, and Python for the cross linker (zig.sh).
#
# usage: build.sh [x86_64|aarch64], this machine's processor if none is named
set -eu
cd "$(dirname "$0")/.."
PATH=$(limiter/zig.sh):$PATH
machine=$(rustc --print host-tuple)
machine=${1:-${machine%%-*}}
target=$machine-unknown-linux-gnu static=$machine-unknown-linux-musl
for one in "$target" "$static"; do
    rustup target list --installed | grep -qx "$one" || rustup target add "$one" >&2
done
cargo zigbuild --quiet --locked --release -p aliquot-limiter -p aliquot-hook --lib --bin aliquot-hook-limit \
    --target "$target.2.17"
targets=$(realpath "${CARGO_TARGET_DIR:-target}")
# Rust brings musl, whose libc has what others have in libdl, and a linker.
ar crs "$targets/libdl.a"
cargo build --quiet --locked --release -p aliquot-hook --bin aliquot-hook --target "$static" \
    --config "target.$static.linker='rust-lld'" --config "target.$static.rustflags=['-L', 'native=$targets']"
folder=$targets/$target/release
ln -f "$targets/$static/release/aliquot-hook" "$folder"
# `readelf` reads the files of other processors too.
if readelf --wide --segments --dynamic "$folder/aliquot-hook" | grep -E 'INTERP|NEEDED' >&2; then
    echo "$folder/aliquot-hook is not static" >&2 && exit 1
fi
for file in "$folder/libvgpu.so" "$folder/aliquot-hook-limit"; do
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
