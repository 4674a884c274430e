#!/usr/bin/env bash
# Makes the release's page on GitHub, with its notes and files.
#   TAG=... GH_TOKEN=... release/github.sh FOLDER
# FOLDER: what publish.sh has signed. Needs gh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-}
need_folder
need GH_TOKEN '.+' "a token that may write releases"
notes=$("$top/release/check.sh")
cd "$FOLDER"
[ -f SHA256SUMS.sigstore.json ] || fail "$FOLDER has no SHA256SUMS.sigstore.json, expected: what publish.sh has signed"
# Each file of the checksums, their signature, and the provenance of the programs.
mapfile -t files < <(cut -d' ' -f3 SHA256SUMS)
gh release create "$TAG" --repo "${GITHUB_REPOSITORY:?is not set, expected: OWNER/NAME}" --verify-tag --title "$TAG" \
  --notes "$notes" "${files[@]}" SHA256SUMS SHA256SUMS.sigstore.json ./*.provenance.sigstore.json
