#!/usr/bin/env bash
# Prints the SBOM of the image's binaries as SPDX JSON: the crates that are linked into Aliquot's, with
# their checksums in Cargo.lock, and the modules of NVIDIA's go.mod.
#   images/sbom.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
lock=Cargo.lock
modules=tests/toolkit/newest/go.mod
# Neither dependencies of tests, nor what only the compiler runs.
linked=$(cargo tree --locked --edges normal,no-proc-macro --prefix none --format '{p}' \
  -p aliquot-scheduler -p aliquot-webhook -p aliquot-device-plugin -p aliquot-monitor \
  -p aliquot-cli -p aliquot-limiter -p aliquot-hook | awk '{ print $1, substr($2, 2) }' | sort -u)
cat <<JSON
{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"aliquot-$1",
"documentNamespace":"https://aliquot.dev/sbom/$(cat "$lock" "$modules" | sha256sum | cut -d' ' -f1)",
"creationInfo":{"created":"1970-01-01T00:00:00Z","creators":["Tool: images/sbom.sh"]},
"packages":[
JSON
awk -F'"' -v linked="$linked" '
  BEGIN { count = split(linked, lines, "\n"); for (i = 1; i <= count; i++) is_linked[lines[i]] = 1 }
  function out() { if ((name " " version) in is_linked) {
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
