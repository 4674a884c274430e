#!/usr/bin/env bash
# Times a newcomer's path: a fresh clone, the commands of README.md as they stand there, a value
# changed in an example and one in the code, each read in the container, and the quick start of
# docs/guides, command by command. Prints one line for each
# step: seconds, CPU seconds, the step.
#   tests/e2e/newcomer.sh              the commit that is checked out; needs root, as make demo
#   ALIQUOT_FRESH=1 ...                without the caches that a fresh machine lacks: Cargo's
#                                      registry, Go's modules and builds, the test cluster's binaries
# It needs space for a whole build below TMPDIR, and removes all of it. It replaces a running demo.
set -euo pipefail
export LC_ALL=C # seconds with a decimal point
unset CARGO_TARGET_DIR MAKEFLAGS MFLAGS MAKELEVEL RUST_BACKTRACE # of the make that started this
source=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
work=$(mktemp -d "${TMPDIR:-/tmp}/newcomer-XXXX")
log=$work/log
clone=$work/aliquot
began=$SECONDS
if [ -n "${ALIQUOT_FRESH:-}" ]; then
  mkdir "$work/cargo"
  # The machine's own registries stay configured.
  cp "${CARGO_HOME:-$HOME/.cargo}"/config.toml "$work/cargo/" 2>/dev/null || true
  export CARGO_HOME=$work/cargo GOMODCACHE=$work/go/mod GOCACHE=$work/go/build ALIQUOT_CACHE=$work/cache
fi
leave() {
  # Not by make, which would first build what an early failure left unbuilt.
  [ ! -x "$clone/target/debug/demo" ] || "$clone/target/debug/demo" down >>"$log" 2>&1 || true
  chmod -R u+w "$work" && rm -rf "$work"
}
trap leave EXIT

step() { # step WHAT COMMAND...
  local what=$1 took
  shift
  if ! took=$({ TIMEFORMAT='%R %U %S'; time "$@" >"$log" 2>&1; } 2>&1); then
    echo "$what failed:" >&2
    tail -n 40 "$log" >&2
    exit 1
  fi
  awk -v w="$what" '{printf "%7.1f s, %7.1f s of CPU  %s\n", $1, $2 + $3, w}' <<<"$took"
}
shows() { # shows TEXT: fails unless the demo printed it
  grep -qF -- "$1" "$log" || { echo "the demo did not show $1:" >&2; cat "$log" >&2; exit 1; }
}
in_pod() { # in_pod VARIABLE=VALUE: fails unless the first pod's container has it
  /tmp/aliquot-demo/parts/bin/kubectl exec gpu-pod -- env | grep -qxF -- "$1" || { echo "gpu-pod has no $1" >&2; exit 1; }
}
changed() { # changed FILE: fails unless sed changed it
  ! git diff --quiet -- "$1" || { echo "$1 no longer has such a line" >&2; exit 1; }
}
within() { sed -n 's/^\[\( *[0-9.]* s\)\] ready.*/          of this \1 from the first process to ready/p' "$log"; }

step "git clone" git clone -q "$source" "$clone"
cd "$clone"
# The commands of README.md as they stand there: the first starts the demo, the last removes it.
mapfile -t readme < <(awk '/^## /{ inside = /^## Try it$/ } /^```/{ block = inside && /sh$/; next } block' README.md |
  sed 's/  *#.*//')
[ ${#readme[@]} = 2 ] || { echo "README.md has ${#readme[@]} commands under Try it, expected: 2" >&2; exit 1; }
read -ra up <<<"${readme[0]}"
read -ra down <<<"${readme[1]}"
step "${up[*]}, from the sources of Kubernetes, containerd and Aliquot" "${up[@]}"
in_pod CUDA_DEVICE_MEMORY_LIMIT_0=3000m
shows 'gpu-pod: compute: share 30 %; got '
within
awk -v s=$((SECONDS - began)) 'BEGIN {printf "%7.1f s from nothing to limits that hold\n", s}'
sed -i 's|nvidia.com/gpumem: 3000|nvidia.com/gpumem: 4000|' examples/gpu-pod.yaml
changed examples/gpu-pod.yaml
step "examples/gpu-pod.yaml: 4000 MiB; ${up[*]}" "${up[@]}"
in_pod CUDA_DEVICE_MEMORY_LIMIT_0=4000m
within
# The agent writes the container's compute limit.
sed -i 's|"CUDA_DEVICE_SM_LIMIT={cores}"|"CUDA_DEVICE_SM_LIMIT={cores}.0"|' device-plugin/src/allocation/environment.rs
changed device-plugin/src/allocation/environment.rs
step "a line of the agent's code; ${up[*]}" "${up[@]}"
in_pod CUDA_DEVICE_SM_LIMIT=30.0
within
step "${down[*]}" "${down[@]}"
git checkout -q -- examples device-plugin
step "docs/guides/quick-start.md on a node with simulated GPUs, with a build of all parts" bash -c \
  'make build && cargo test --workspace --locked --test installed -- quick_start_runs_as_written --ignored --nocapture'
sed -n 's/^    quick start: \(.*\): \([0-9.]* s\)$/          of this \2  \1/p' "$log"
