#!/usr/bin/env bash
# Makes a release's files from what was built for each machine: the image for all machines, the chart
# that names it, krew's manifest, the provenance, and the checksums. Sends nothing anywhere.
#   TAG=... REPOSITORY=... SOURCE=... REVISION=... BUILDER=... INVOCATION=... release/assemble.sh FOLDER
# FOLDER: has the images, image-*.tar, and the archives of kubectl-aliquot.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-}
need_folder
need TAG "v${version//./[.]}" "v$version, as Cargo.toml has it"
export DOWNLOADS=${DOWNLOADS:-${SOURCE:-}/releases/download/$TAG}
images=("$FOLDER"/image-*.tar)
[ -f "${images[0]}" ] || fail "$FOLDER has no image-*.tar, expected: what images/buildah.sh wrote for each machine"
"$top/release/image.py" "$FOLDER" "${images[@]}" >"$FOLDER/digests.txt"
DIGEST=$(sed -n 's/ index$//p' "$FOLDER/digests.txt") "$top/release/chart.sh" "$FOLDER" >&2
"$top/release/krew.sh" "$FOLDER" >&2
"$top/release/provenance.py" >"$FOLDER/provenance.json"
cd "$FOLDER"
sha256sum ./*.tar.gz ./*.tgz ./*.spdx.json aliquot.yaml provenance.json digests.txt | sed 's|\./||' >SHA256SUMS
cat SHA256SUMS
