#!/usr/bin/env bash
# Makes base images for images/Dockerfile of Debian's packages and this machine's Go, where no registry
# can be reached, and prints the folder that has them and storage.conf, which names their storage:
#   FOLDER=$(tests/chart/base-images.sh)
#   CONTAINERS_STORAGE_CONF=$FOLDER/storage.conf buildah images
# A second run is a look-up. Packages come from where this machine's apt, pip and Go get theirs.
# Rust is not in them: the build has the machine's, see dockerfile.sh.
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Cold: about two minutes on 2 cores.
# $STORAGE_DRIVER: vfs where the kernel refuses overlay.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v buildah >/dev/null || ! command -v mmdebstrap >/dev/null; then
  { apt-get update && apt-get install -y --no-install-recommends buildah mmdebstrap; } >&2
fi

bundle=/etc/ssl/certs/ca-certificates.crt
list_sources() {
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' \
    "Architecture: $(dpkg --print-architecture)" | sort -u
}
sources=$(list_sources)
[ -n "$sources" ] || { apt-get update >&2 && sources=$(list_sources); }
options=$(apt-config dump | grep -E '^Acquire::(Check|http|https)' || true)
# What the machine configures by variables.
variables=()
for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_{INDEX_URL,CERT}; do
  [ -z "${!name:-}" ] || variables+=(--env "$name=${!name}")
done
for name in GOPROXY GOSUMDB; do variables+=(--env "$name=$(go env $name)"); done
pip=/etc/pip.conf
[ -e $pip ] || pip=/dev/null
rustup=$(rustup show home)
driver=${STORAGE_DRIVER:-overlay}

key=$(cat base-images.sh $bundle /etc/os-release $pip <(go version) \
  <(echo "$sources $options ${variables[*]} $rustup $driver") | sha256sum | cut -c1-16)
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/base-images-$key
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9 # two runs on one machine make them once
[ ! -e "$dir/.complete" ] || { echo "$dir"; exit; }

echo "making base images of Debian's packages (once, about two minutes)" >&2
cat >"$dir/storage.conf" <<CONF
[storage]
driver = "$driver"
graphroot = "$dir/storage"
runroot = "$dir/run"
CONF
export CONTAINERS_STORAGE_CONF=$dir/storage.conf BUILDAH_ISOLATION=chroot
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit() { # CONTAINER NAME: becomes a base image
  buildah commit --quiet --rm "$1" "localhost/base/$2" >&2
}
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

. /etc/os-release
echo "$options" >"$work/options"
mmdebstrap --quiet --variant=minbase --include=ca-certificates --aptopt="$work/options" \
  "$VERSION_CODENAME" "$work/debian.tar" - <<<"$sources" >&2
debian=$(buildah from scratch)
buildah add --quiet "$debian" "$work/debian.tar" / >&2
buildah add --quiet "$debian" $bundle $bundle >&2
[ $pip = /dev/null ] || buildah add --quiet "$debian" $pip $pip >&2
buildah config "${variables[@]}" --env DEBIAN_FRONTEND=noninteractive --env PATH=$path "$debian"
commit "$debian" debian

# Debian's gcc by RHEL's command: what is tested are the name and the steps, not the older glibc.
printf '#!/bin/sh\napt-get update && exec apt-get "$@"\n' >"$work/dnf"
chmod 755 "$work/dnf"
almalinux=$(buildah from localhost/base/debian)
buildah add --quiet "$almalinux" "$work/dnf" /usr/bin/dnf >&2
commit "$almalinux" almalinux

# rustup downloads nothing: a toolchain that the machine lacks is an error.
rust=$(buildah from localhost/base/debian)
buildah run "$rust" sh -c 'apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev' >&2
buildah config --env CARGO_HOME=/usr/local/cargo --env CARGO_BUILD_BUILD_DIR=/compiled \
  --env RUSTUP_HOME="$rustup" --env RUSTUP_AUTO_INSTALL=0 --env PATH=/usr/local/cargo/bin:$path "$rust"
commit "$rust" rust

golang=$(buildah from scratch)
buildah add --quiet "$golang" "$(go env GOROOT)" /usr/local/go >&2
commit "$golang" golang

# The packages of libraries that distroless/cc has, unpacked as they are.
mkdir -p "$work"/{packages,root/etc}
(cd "$work/packages" && apt-get download --quiet -o APT::Sandbox::User=root libc6 libgcc-s1 libstdc++6 libgomp1) >&2
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
echo 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >"$work/root/etc/passwd"
distroless=$(buildah from scratch)
buildah add --quiet "$distroless" "$work/root" / >&2
commit "$distroless" distroless

: >"$dir/.complete"
echo "$dir"
