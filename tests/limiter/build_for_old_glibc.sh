#!/bin/sh
# Builds the files that run with an old libc, for glibc 2.17 or newer: libvgpu.so as it is
# shipped, the simulated CUDA driver, and clients/ways.c; and the hook, which runs without one.
# Prints the paths of library, hook, driver and program, one a line.
#
# usage: build_for_old_glibc.sh FOLDER, where the compiled client goes
set -eu
folder=${1:?a folder}
cd "$(dirname "$0")"
library=$(../../limiter/build.sh)
tools=$(../../limiter/zig.sh)
PATH=$tools:$PATH
target=$(rustc --print host-tuple)
cargo zigbuild --quiet --locked -p aliquot-gpusim-cuda --target "$target.2.17"
"$tools/python" -m ziglang cc -target "${target%%-*}-linux-gnu.2.17" -O1 \
    -o "$folder/ways-old" clients/ways.c -ldl
echo "$library"
echo "$(dirname "$library")/aliquot-hook"
echo "$(cd ../.. && cd "${CARGO_TARGET_DIR:-target}" && pwd)/$target/debug/libaliquot_gpusim_cuda.so"
echo "$folder/ways-old"
