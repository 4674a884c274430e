# Sourced by scripts that build programs from Go modules. What they build is kept in $ALIQUOT_CACHE,
# else ~/.cache/aliquot, for the sources that it was built of.

# kept NAME SOURCE...: sets $dir to the folder of these sources, and has the caller's function `build`
# fill it where this machine has none yet. A second run is a look-up.
kept() {
  local name=$1
  shift
  dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/$name-$(cat "$@" <(go version) | sha256sum | cut -c1-16)
  [ ! -e "$dir/.complete" ] || return 0
  mkdir -p "$dir"
  exec 9>"$dir/.lock"
  flock 9 # two runs on one machine build once
  [ ! -e "$dir/.complete" ] || return 0
  build >&2
  : >"$dir/.complete"
}

# go_build MODULE LDFLAGS ARGUMENT...: in the folder of the module. With the same flags everywhere, what
# several need is compiled once; without debug information, with less time and space.
go_build() {
  (cd "$1" && CGO_ENABLED=${cgo:-0} go build -trimpath -gcflags=all=-dwarf=false -ldflags="-s -w $2" "${@:3}")
}

# kubernetes_build MODULE ARGUMENT...: the same, of a module that needs Kubernetes. Without a version the
# API server calls itself v0.0.0-master.
kubernetes_build() {
  local version package flags=
  version=$(sed -n 's|^\s*k8s.io/kubernetes v1\.\([0-9.]*\).*|\1|p' "$1/go.mod" | head -1)
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=v1.$version -X $package.gitMajor=1 -X $package.gitMinor=${version%%.*} -X $package.gitTreeState=clean"
  done
  go_build "$1" "$flags" "${@:2}"
}

# debian PACKAGE...: installs those that are missing; waits for another apt, such as that of a machine
# that has just started.
debian() {
  local package missing=
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=" $package"
  done
  # shellcheck disable=SC2086 # several words
  [ -z "$missing" ] || { apt-get update -o Acquire::Retries=5 && DEBIAN_FRONTEND=noninteractive apt-get install -y \
    --no-install-recommends -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 $missing; } >&2
}
