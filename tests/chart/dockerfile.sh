#!/usr/bin/env bash
# Builds images/Dockerfile as an OCI archive with buildah, without a container daemon, on the base images
# of base-images.sh; with the commit's time, as a release does.
#   tests/chart/dockerfile.sh ARCHIVE
# Shares the machine's Rust, and its caches of cargo and Go. What cargo compiled stays in
# the target folder: cargo compares times of files, which are those of one clone. NVIDIA's programs may
# need the glibc of Debian.
set -euo pipefail
archive=$(realpath "$1")
cd "$(dirname "$0")/../.."
bases=$(tests/chart/base-images.sh)
exec 9>"$bases/.lock"
flock 9 # one build at a time in a storage
export CONTAINERS_STORAGE_CONF=$bases/storage.conf BUILDAH_ISOLATION=chroot
# Of earlier builds.
buildah rm --all >&2
buildah rmi --prune >&2

options=()
while read -r image; do
  name=${image#gcr.io/}
  options+=(--build-context "$image=container-image://localhost/base/${name%%[:/]*}")
done < <(sed -n 's/^FROM \([^ ]*@sha256:[^ ]*\).*/\1/p' images/Dockerfile)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name=localhost/aliquot:$version
cargo=${CARGO_HOME:-$HOME/.cargo} rustup=$(rustup show home) compiled=$(realpath -m "${CARGO_TARGET_DIR:-target}")/dockerfile
mkdir -p "$compiled" "$(go env GOMODCACHE)" "$(go env GOCACHE)"
# Nothing in the build may change the machine's toolchains, which have absolute links.
static=$(uname -m)-unknown-linux-musl
rustup target list --installed | grep -qx "$static" || rustup target add "$static" >&2
buildah build --file images/Dockerfile --ignorefile images/Dockerfile.dockerignore --format oci \
  --timestamp "$(git show -s --format=%ct HEAD)" \
  --build-arg VERSION="$version" --build-arg REVISION="$(git rev-parse HEAD)" --build-arg NEWEST_GLIBC=9.9 \
  --tag "$name" "${options[@]}" \
  --volume "$cargo:/usr/local/cargo" --volume "$cargo/bin:/usr/local/cargo/bin:ro" --volume "$rustup:$rustup:ro" \
  --volume "$compiled:/compiled" \
  --volume "$(go env GOMODCACHE):/root/go/pkg/mod" --volume "$(go env GOCACHE):/root/.cache/go-build" . >&2
rm -f "$archive"
buildah push "$name" "oci-archive:$archive:$name" >&2
