#!/usr/bin/env bash
# Checks dependencies against deny.toml with cargo-deny.
#
# usage: deny.sh [fetch]
#
# Advisories are checked with the database that `deny.sh fetch` has downloaded from GitHub, and only
# if there is one: no package registry has it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

deny() { tests/style/tool.sh cargo-deny --locked "$@"; }
deny check -D unmatched-skip -D unnecessary-skip bans licenses sources
if [ "${1:-}" = fetch ]; then
    deny check advisories
elif compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/.git" >/dev/null; then
    # A database older than 90 days is an error; `make deny` renews it.
    deny --offline check advisories
else
    echo "advisories not checked: no database yet, make deny downloads it from GitHub"
fi
