#!/usr/bin/env bash
# Prints a Python that has the programs of programs/requirements.txt, installed once by their hashes
# and kept under ${ALIQUOT_CACHE:-~/.cache/aliquot}.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/programs/requirements.txt
# Of Debian's packages, clients.sh installs what a Python environment needs.
base=$("$here/../gpusim/clients.sh" python | tail -n 1)/bin/python3
cache=${ALIQUOT_CACHE:-$HOME/.cache/aliquot}
hash=$({ "$base" --version; cat "$requirements"; } | sha256sum | cut -c1-16)
venv=$cache/programs-$hash
mkdir -p "$cache"
(
    flock 9
    [ ! -e "$venv/.complete" ] || exit 0
    rm -rf "$venv"
    "$base" -m venv "$venv"
    "$venv/bin/python" -m pip install --retries 10 --quiet --disable-pip-version-check \
        --require-hashes --no-deps --only-binary=:all: --requirement "$requirements" >&2
    touch "$venv/.complete"
) 9>"$venv.lock"
echo "$venv/bin/python"
