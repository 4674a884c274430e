#!/usr/bin/env bash
# Builds the image with all programs as an OCI archive, from existing binaries and without a
# container daemon, for tests with containerd; the Dockerfile builds the same.
#   images/build.sh FOLDER ARCHIVE [NAME]
# FOLDER: has the binaries, such as target/release. NAME: localhost/aliquot:VERSION.
# $LIMITER: folder with libvgpu.so, aliquot-hook and aliquot-hook-limit, which containers and hosts
# with old C libraries load; limiter/build.sh builds them if it is not set. They must not need a
# newer glibc than 2.17; $NEWEST_GLIBC sets another version, for tests on one machine.
# $TOOLKIT: folder with NVIDIA's nvidia-ctk and nvidia-cdi-hook, which the agent installs on nodes;
# hack/toolkit.sh builds them if it is not set, for nodes with this machine's glibc or a newer one.
# The same binaries give the same archive. Needs tar, sha256sum, ldd, readelf, strip, go.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
folder=$1 archive=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -1)
name=${3:-localhost/aliquot:$version}
# A runtime resolves a name without a registry to docker.io.
case ${name%%/*} in *.* | *:* | localhost) full=$name ;; *) full=docker.io/$name ;; esac
case $name in */*) ;; *) full=docker.io/library/$name ;; esac
revision=$(git -C "$top" rev-parse HEAD 2>/dev/null || echo unknown)
case $(uname -m) in x86_64) machine=amd64 ;; aarch64) machine=arm64 ;; *) machine=$(uname -m) ;; esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{usr/local/bin,usr/local/lib/aliquot,usr/share/aliquot,etc,tmp}
programs=(aliquot-scheduler aliquot-webhook aliquot-device-plugin aliquot-monitor kubectl-aliquot)
for program in "${programs[@]}"; do
  strip -o "$root/usr/local/bin/$program" "$folder/$program"
  # The libraries that it is linked with, and nothing else of a distribution.
  ldd "$folder/$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
done
# NVIDIA's libraries and programs, which the agent loads from the node, were linked with a glibc in
# which these were separate files; today's glibc has stubs beside libc for them.
libc=$(ldd "$folder/${programs[0]}" | grep -o '/[^ ]*/libc\.so\.6')
for library in libdl.so.2 libm.so.6 libpthread.so.0 librt.so.1; do
  cp -L "$(dirname "$libc")/$library" "$root$(dirname "$libc")/$library"
done
# The agent installs them on the node, where containers and the runtime load them.
limiter=${LIMITER:-$(dirname "$("$top/limiter/build.sh")")}
bound=${NEWEST_GLIBC:-2.17}
for file in libvgpu.so aliquot-hook aliquot-hook-limit; do
  # A static program names none.
  newest=$(readelf -V "$limiter/$file" | { grep -o 'GLIBC_[0-9.]*' || true; } | cut -d_ -f2 | sort -Vu | tail -n 1)
  if [ "$(printf '%s\n%s\n' "$newest" "$bound" | sort -V | tail -n 1)" != "$bound" ]; then
    echo "$limiter/$file needs glibc $newest, expected: $bound or older; build it with limiter/build.sh" >&2
    exit 1
  fi
  strip --strip-debug -o "$root/usr/local/lib/aliquot/$file" "$limiter/$file"
  chmod 755 "$root/usr/local/lib/aliquot/$file"
done
toolkit=${TOOLKIT:-$("$top/hack/toolkit.sh")}
for file in nvidia-ctk nvidia-cdi-hook; do
  install -m 755 "$toolkit/$file" "$root/usr/local/lib/aliquot/$file"
done
echo 'nonroot:x:65532:65532::/:/none' >"$root/etc/passwd"
go version -m "$toolkit"/{nvidia-ctk,nvidia-cdi-hook} >"$work/modules"
"$top/images/sbom.sh" "$version" "$work/modules" >"$root/usr/share/aliquot/sbom.spdx.json"
chmod -R a+rX "$root"

store() { # FILE: put among the blobs; prints "digest" and "size" as JSON
  local digest
  digest=$(sha256sum "$1" | cut -d' ' -f1)
  mv "$1" "$work/oci/blobs/sha256/$digest"
  printf '"digest":"sha256:%s","size":%s' "$digest" "$(stat -c %s "$work/oci/blobs/sha256/$digest")"
}
pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -C "$1" -cf "$2" .; }
mkdir -p "$work/oci/blobs/sha256"
pack "$root" "$work/layer"
diff=$(sha256sum "$work/layer" | cut -d' ' -f1)
layer=$(store "$work/layer")
cat >"$work/config" <<JSON
{"architecture":"$machine","os":"linux","config":{"User":"65532:65532","Env":["PATH=/usr/local/bin"],
"Labels":{"org.opencontainers.image.title":"aliquot","org.opencontainers.image.version":"$version","org.opencontainers.image.revision":"$revision","org.opencontainers.image.licenses":"Apache-2.0"}},
"rootfs":{"type":"layers","diff_ids":["sha256:$diff"]}}
JSON
config=$(store "$work/config")
cat >"$work/manifest" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{"mediaType":"application/vnd.oci.image.config.v1+json",$config},
"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",$layer}]}
JSON
manifest=$(store "$work/manifest")
cat >"$work/oci/index.json" <<JSON
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",$manifest,
"annotations":{"io.containerd.image.name":"$full","org.opencontainers.image.ref.name":"$name"}}]}
JSON
echo '{"imageLayoutVersion":"1.0.0"}' >"$work/oci/oci-layout"
pack "$work/oci" "$archive"
