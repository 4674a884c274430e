#!/usr/bin/env bash
# Prints the SBOM of the image's binaries as SPDX JSON: of Aliquot's from Cargo.lock, of NVIDIA's from
# their go.mod.
#   images/sbom.sh VERSION
set -euo pipefail
lock=$(dirname "$0")/../Cargo.lock
modules=$(dirname "$0")/../tests/toolkit/newest/go.mod
cat <<JSON
{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"aliquot-$1",
"documentNamespace":"https://aliquot.dev/sbom/$(cat "$lock" "$modules" | sha256sum | cut -d' ' -f1)",
"creationInfo":{"created":"1970-01-01T00:00:00Z","creators":["Tool: images/sbom.sh"]},
"packages":[
JSON
awk -F'"' '
  function out() { if (name != "") {
    printf "%s{\"SPDXID\":\"SPDXRef-%d\",\"name\":\"%s\",\"versionInfo\":\"%s\",\"downloadLocation\":\"NOASSERTION\"", sep, ++n, name, version
    if (sum != "") printf ",\"checksums\":[{\"algorithm\":\"SHA256\",\"checksumValue\":\"%s\"}]", sum
    printf ",\"externalRefs\":[{\"referenceCategory\":\"PACKAGE-MANAGER\",\"referenceType\":\"purl\",\"referenceLocator\":\"pkg:cargo/%s@%s\"}]}\n", name, version
    sep = "," }
    name = version = sum = "" }
  /^\[\[package\]\]/ { out() }
  /^name = / { name = $2 }
  /^version = / { version = $2 }
  /^checksum = / { sum = $2 }
  END { out() }' "$lock"
awk '/^\t[^ ]+ v[0-9]/ {
  printf ",{\"SPDXID\":\"SPDXRef-go-%d\",\"name\":\"%s\",\"versionInfo\":\"%s\",\"downloadLocation\":\"NOASSERTION\"", ++n, $1, $2
  printf ",\"externalRefs\":[{\"referenceCategory\":\"PACKAGE-MANAGER\",\"referenceType\":\"purl\",\"referenceLocator\":\"pkg:golang/%s@%s\"}]}\n", $1, $2 }' "$modules"
echo ']}'
