#!/usr/bin/env bash
# Prints the SBOM of Aliquot's binaries, from Cargo.lock, as SPDX JSON.
#   images/sbom.sh VERSION
set -euo pipefail
lock=$(dirname "$0")/../Cargo.lock
cat <<JSON
{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"aliquot-$1",
"documentNamespace":"https://aliquot.dev/sbom/$(sha256sum "$lock" | cut -d' ' -f1)",
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
echo ']}'
