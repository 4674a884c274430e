#!/bin/sh
# Prints the folder with cargo-zigbuild, which links for old C libraries and other processors; it is
# installed from PyPI, once for these requirements, beside the caches. Needs Python.
set -eu
requirements=$(dirname "$0")/build-requirements.txt
cache=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}
tools=$cache/zig-$(cksum <"$requirements" | cut -d' ' -f1)
mkdir -p "$cache"
(
    # Two runs on one machine install once. A Mac has no flock.
    ! command -v flock >/dev/null || flock 9
    [ ! -e "$tools/.complete" ] || exit 0
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --require-hashes --only-binary=:all: -r "$requirements" >&2
    : >"$tools/.complete"
) 9>"$tools.lock"
echo "$tools/bin"
