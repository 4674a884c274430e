#!/usr/bin/env bash
# Prints the path of a Python with Triton and the headers of Python, with which Triton builds the
# module that calls the driver. Both are installed once: 290 MB are downloaded, and 1.1 GB kept under
# ${ALIQUOT_CACHE:-~/.cache/aliquot}, by the hash of the requirements.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/clients/triton.txt
cache=${ALIQUOT_CACHE:-$HOME/.cache/aliquot}

install_debian() {
    apt-get update -qq -o Acquire::Retries=5 >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 "$@" >&2
}

has_headers() {
    [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]
}

command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' 2>/dev/null ||
    install_debian python3 python3-venv
has_headers || install_debian python3-dev
venv=$cache/triton-$({ python3 --version; cat "$requirements"; } | sha256sum | cut -c1-16)
mkdir -p "$cache"
(
    flock 9
    [ ! -e "$venv/.complete" ] || exit 0
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --retries 10 --quiet --disable-pip-version-check \
        --no-cache-dir --require-hashes --requirement "$requirements" >&2
    touch "$venv/.complete"
) 9>"$venv.lock"
echo "$venv/bin/python"
