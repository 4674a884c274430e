#!/usr/bin/env bash
# Writes the manifest with which krew installs `kubectl aliquot`, of the archives in a folder.
#   SOURCE=... DOWNLOADS=... release/krew.sh FOLDER
# DOWNLOADS: the address below which the archives can be downloaded. SOURCE: that of the repository.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-}
need_folder
need_source
need DOWNLOADS 'https://[^ ]+' "the address below which the archives are, such as $SOURCE/releases/download/v$version"
manifest=$FOLDER/aliquot.yaml
cat >"$manifest" <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: aliquot
spec:
  version: v$version
  homepage: $SOURCE
  shortDescription: Shows who uses which part of which GPU, and why pods wait
  description: |
    For clusters with Aliquot, which shares NVIDIA GPUs between pods.
    explain says why a pod waits or where it runs, top what is allocated on each GPU, and doctor
    whether everything is in order, also before an installation.
  platforms:
YAML
for platform in darwin_amd64 darwin_arm64 linux_amd64 linux_arm64; do
  archive=kubectl-aliquot_${version}_$platform.tar.gz
  [ -f "$FOLDER/$archive" ] || fail "$FOLDER has no $archive, expected: what kubectl-aliquot.sh wrote for each platform"
  cat >>"$manifest" <<YAML
  - selector:
      matchLabels: {os: ${platform%_*}, arch: ${platform#*_}}
    uri: $DOWNLOADS/$archive
    sha256: $(sha256sum "$FOLDER/$archive" | cut -d' ' -f1)
    bin: kubectl-aliquot
YAML
done
echo "$manifest"
