#!/usr/bin/env bash
# Checks that a tag fits the tree, and prints its section of CHANGELOG.md: the notes of the release.
#   TAG=vVERSION release/check.sh
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$top"
need TAG "v${version//./[.]}" "v$version, as Cargo.toml has it"
for field in version appVersion; do
  chart=$(sed -n "s/^$field: //p" charts/aliquot/Chart.yaml)
  [ "$chart" = "$version" ] || fail "$field of charts/aliquot/Chart.yaml is $chart, expected: $version, as Cargo.toml has it"
done
notes=$(awk -v heading="## $version" '
  /^## / { found = index($0, heading " ") == 1 || $0 == heading; if (found) title = $0; next }
  found { print }' CHANGELOG.md)
date=$(sed -n "s/^## ${version//./[.]} · //p" CHANGELOG.md)
[[ $date =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
  fail "CHANGELOG.md has \"$date\" as the date of $version, expected: a heading ## $version · YYYY-MM-DD"
[[ $notes =~ [^[:space:]] ]] || fail "CHANGELOG.md has nothing under $version, expected: what changed"
echo "$notes"
