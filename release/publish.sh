#!/usr/bin/env bash
# Pushes the image and the chart of a release, and signs both and its files.
#   REPOSITORY=... release/publish.sh FOLDER
# FOLDER: what assemble.sh wrote; it gets the signatures. The chart is pushed to REPOSITORY's parent, at
# charts/aliquot. $REGISTRY_USER, $REGISTRY_TOKEN: to log in with, if it is not done yet.
# $COSIGN_KEY: the key to sign with; without it, the signature is keyless, for the identity that the
# workflow's OIDC token has. $PLAIN_HTTP=1: the registry has no TLS.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-}
need_folder
need_repository
cd "$FOLDER"
[ -f digests.txt ] || fail "$FOLDER has no digests.txt, expected: what assemble.sh wrote"
tools=$("$top/release/tools.sh")
crane=$tools/crane helm=${HELM:-$("$top/hack/helm.sh")}
registry=${REPOSITORY%%/*} chart=${REPOSITORY%/*}/charts
plain=() crane_plain=()
if [ -n "${PLAIN_HTTP:-}" ]; then plain=(--plain-http) crane_plain=(--insecure); fi
if [ -n "${REGISTRY_TOKEN:-}" ]; then
  need REGISTRY_USER '.+' "the user of $registry to whom REGISTRY_TOKEN belongs"
  # All three read the login of ~/.docker/config.json.
  "$crane" auth login "$registry" -u "$REGISTRY_USER" --password-stdin <<<"$REGISTRY_TOKEN" >&2
fi

digest=$(sed -n 's/ index$//p' digests.txt)
"$crane" push "${crane_plain[@]}" --index image "$REPOSITORY:$version" >&2
pushed=$("$crane" digest "${crane_plain[@]}" "$REPOSITORY:$version")
[ "$pushed" = "$digest" ] || fail "$REPOSITORY:$version has the digest $pushed, expected: $digest, which the chart names"
said=$("$helm" push "${plain[@]}" --registry-config "${DOCKER_CONFIG:-$HOME/.docker}/config.json" \
  "aliquot-$version.tgz" "oci://$chart" 2>&1) || fail "$said"
chart_digest=$(sed -n 's/^Digest: //p' <<<"$said")
[ -n "$chart_digest" ] || fail "helm push printed no digest: $said"
REPOSITORY=$REPOSITORY CHART=$chart/aliquot@$chart_digest "$top/release/sign.sh" "$PWD" >&2
echo "$REPOSITORY@$digest"
echo "oci://$chart/aliquot@$chart_digest"
