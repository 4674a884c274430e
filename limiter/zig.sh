#!/bin/sh
# Prints the folder with cargo-zigbuild, which links for old C libraries and other processors; it is
# installed from PyPI, once, beside the caches. Needs Python.
set -eu
tools=${XDG_CACHE_HOME:-$HOME/.cache}/aliquot/zig
if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --require-hashes --only-binary=:all: -r "$(dirname "$0")/build-requirements.txt" >&2
fi
echo "$tools/bin"
