#!/usr/bin/env bash
# Prints the path of mdbook, built from crates.io where this machine has none of this version;
# a second run is a look-up.
#   MDBOOK=$(tests/style/mdbook.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about 5 minutes on 2 cores.
set -euo pipefail

version=0.5.4
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/mdbook-$version
if [ ! -e "$dir/.complete" ]; then
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9 # two runs on one machine build once
fi
if [ ! -e "$dir/.complete" ]; then
  echo "building mdbook $version from crates.io (once, about 5 minutes)" >&2
  # A folder of its own, so that a run that was stopped goes on where it was. No server, no watcher.
  CARGO_TARGET_DIR=$dir/target cargo install --quiet --locked --version "=$version" --root "$dir" \
    --no-default-features --features search mdbook >&2
  rm -rf "$dir/target"
  : >"$dir/.complete"
fi
echo "$dir/bin/mdbook"
