# shellcheck shell=bash
# Common to the scripts of this folder, which source it; also for the bash 3.2 of macOS.
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -1)

fail() { # fail MESSAGE
  echo "$(basename "$0"): $1" >&2
  exit 2
}

need() { # need NAME PATTERN EXPECTED: the variable matches the whole pattern
  local value=${!1:-}
  [[ $value =~ ^($2)$ ]] || fail "$1 is \"$value\", expected: $3"
}

# The inputs of several scripts.
need_folder() { need FOLDER '.+' "the folder with the files of the release, as the first argument"; }
need_repository() {
  need REPOSITORY '[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+' \
    "where the image is pushed, registry and path in lower case, such as ghcr.io/OWNER/aliquot"
}
need_source() { need SOURCE 'https://[^ ]+' "the address of the source repository, such as https://github.com/OWNER/aliquot"; }
