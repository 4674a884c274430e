#!/usr/bin/env bash
# Prints the path of kubernetes-validate, which has the schemas of each Kubernetes version;
# installs it from PyPI into its own virtual environment if this machine has none.
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot.
set -euo pipefail
version=1.37.0
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/kubernetes-validate-$version
mkdir -p "$(dirname "$dir")"
(
  flock 9 # two runs on one machine install once
  [ ! -e "$dir/.complete" ] || exit 0
  rm -rf "$dir"
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
      echo "schemas.sh: Python's venv is missing; install the package python3-venv" >&2
      exit 1
    fi
    echo "schemas.sh: installing python3-venv" >&2
    apt-get update -qq -o Acquire::Retries=5 >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 python3-venv >&2
  fi
  python3 -m venv "$dir" >&2
  "$dir/bin/pip" install --retries 10 --quiet "kubernetes-validate==$version" >&2
  : >"$dir/.complete"
) 9>"$dir.lock"
echo "$dir/bin/kubernetes-validate"
