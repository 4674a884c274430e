#!/usr/bin/env bash
# Prints the path of kubernetes-validate, which knows the objects of each version of
# Kubernetes; installed from PyPI into an environment of its own where this machine has none.
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot.
set -euo pipefail
version=1.37.0
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/kubernetes-validate-$version
mkdir -p "$dir"
(
  flock 9 # two runs on one machine install once
  [ ! -e "$dir/.complete" ] || exit 0
  { python3 -m venv "$dir" && "$dir/bin/pip" install --quiet "kubernetes-validate==$version"; } >&2
  : >"$dir/.complete"
) 9>"$dir/.lock"
echo "$dir/bin/kubernetes-validate"
