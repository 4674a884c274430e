#!/bin/sh
# Builds libvgpu.so as it is shipped: it needs the C library and nothing else, of glibc 2.17 or
# newer, so that it loads in old and slim images. Prints the path of the file.
# Needs Python and objdump; the cross linker is installed from PyPI, once, beside the caches.
set -eu
cd "$(dirname "$0")/.."
tools=${XDG_CACHE_HOME:-$HOME/.cache}/aliquot/zig
if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet cargo-zigbuild==0.24.0 ziglang==0.17.1
fi
PATH=$tools/bin:$PATH
target=$(rustc --print host-tuple)
cargo zigbuild --quiet --locked --release -p aliquot-limiter --target "$target.2.17"
library=${CARGO_TARGET_DIR:-target}/$target/release/libvgpu.so
needs=$(objdump -p "$library" | awk '$1 == "NEEDED" { print $2 }')
for need in $needs; do
    case $need in
    libc.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux*) ;;
    *) echo "libvgpu.so needs $need" >&2 && exit 1 ;;
    esac
done
newest=$(objdump -T "$library" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -Vu | tail -n 1)
[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -n 1)" = 2.17 ] || {
    echo "libvgpu.so needs glibc $newest" >&2 && exit 1
}
echo "$library"
