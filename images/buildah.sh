#!/usr/bin/env bash
# Builds images/Dockerfile for this machine's processor as an OCI archive, by buildah: without a
# container daemon.
#   images/buildah.sh ARCHIVE [OPTION...]
# OPTION: of buildah build.
# $REVISION: the commit, HEAD if it is not set. Installs Debian's buildah if there is none.
set -euo pipefail
[ $# -ge 1 ] || { echo "buildah.sh: no arguments, expected: the path of the archive" >&2; exit 2; }
archive=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
if ! command -v buildah >/dev/null; then
  root=; [ "$(id -u)" = 0 ] || root=sudo
  { $root apt-get update && $root apt-get install -y --no-install-recommends buildah; } >&2
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
revision=${REVISION:-$(git rev-parse HEAD)}
name=localhost/aliquot:$version
# Times of the commit, so that they say nothing of the build.
buildah build --file images/Dockerfile --ignorefile images/Dockerfile.dockerignore --format oci \
  --timestamp "$(git show -s --format=%ct HEAD)" \
  --build-arg VERSION="$version" --build-arg REVISION="$revision" --tag "$name" "$@" . >&2
rm -f "$archive"
buildah push "$name" "oci-archive:$archive:$name" >&2
