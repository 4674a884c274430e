#!/usr/bin/env bash
# Prints a Python that has the programs of programs/requirements.txt, installed once by their hashes
# and kept under ${ALIQUOT_CACHE:-~/.cache/aliquot}.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/programs/requirements.txt
if ! command -v python3 >/dev/null || ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    apt-get update -qq -o Acquire::Retries=5 >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 python3 python3-venv >&2
fi
# The Python itself, also where `python3` is a virtual environment's.
base=$(python3 -c 'import sys; print(sys.base_prefix)')/bin/python3
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
