#!/usr/bin/env bash
# Signs what was pushed, image and chart, with provenance, each machine's image with its SBOM, and the
# checksums, which are those of all files.
#   REPOSITORY=... CHART=... release/sign.sh FOLDER
# CHART: the pushed chart with its digest. The rest as in publish.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-}
need_folder
need_repository
need CHART '[^ ]+@sha256:[0-9a-f]{64}' "the pushed chart with its digest, as publish.sh passes it"
cd "$FOLDER"
cosign=$("$top/release/tools.sh")/cosign
how=(--yes)
[ -z "${COSIGN_KEY:-}" ] || how+=(--key "$COSIGN_KEY" --use-signing-config=false --tlog-upload=false)
where=()
[ -z "${PLAIN_HTTP:-}" ] || where+=(--allow-insecure-registry --allow-http-registry)

while read -r digest what; do
  image=$REPOSITORY@$digest
  "$cosign" sign "${how[@]}" "${where[@]}" "$image"
  "$cosign" attest "${how[@]}" "${where[@]}" --type slsaprovenance1 --predicate provenance.json "$image"
  [ "$what" = index ] ||
    "$cosign" attest "${how[@]}" "${where[@]}" --type spdxjson --predicate "aliquot_image_$what.spdx.json" "$image"
done <digests.txt
"$cosign" sign "${how[@]}" "${where[@]}" "$CHART"
"$cosign" attest "${how[@]}" "${where[@]}" --type slsaprovenance1 --predicate provenance.json "$CHART"
"$cosign" sign-blob "${how[@]}" --bundle SHA256SUMS.sigstore.json SHA256SUMS
for archive in kubectl-aliquot_*.tar.gz; do
  "$cosign" attest-blob "${how[@]}" --type slsaprovenance1 --predicate provenance.json \
    --bundle "$archive.provenance.sigstore.json" "$archive"
done
