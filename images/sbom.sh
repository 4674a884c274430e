#!/usr/bin/env bash
# Prints the SBOM of programs as SPDX JSON: the crates that are linked into Aliquot's, with their
# checksums in Cargo.lock, the modules that are linked into Go programs, and both standard libraries.
#   images/sbom.sh VERSION MODULES [TARGET CRATE...]
# MODULES: what `go version -m` printed of the Go programs; /dev/null for none.
# TARGET: for which the crates are built, this machine's if none is named. CRATE: all of the image.
set -euo pipefail
modules=$(cat "$2")
cd "$(dirname "$0")/.."
version=$1 target=${3:-$(rustc --print host-tuple)}
crates=("${@:4}")
if [ ${#crates[@]} = 0 ]; then
  crates=(aliquot-scheduler aliquot-webhook aliquot-device-plugin aliquot-monitor aliquot-cli aliquot-limiter aliquot-hook)
fi
sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }
# Neither dependencies of tests, nor what only the compiler runs.
linked=$(cargo tree --locked --edges normal,no-proc-macro --prefix none --format '{p}' --target "$target" \
  "${crates[@]/#/-p}" | awk '{ print $1, substr($2, 2) }' | sort -u)
# Of each Go program the main module, what it depends on, and Go itself; `=>` replaces the line above.
modules=$(awk '
  $2 ~ /^go[0-9]/ { print "stdlib", "v" substr($2, 3) }
  $1 == "=>" { last = $2 " " $3 }
  $1 != "=>" && last { print last; last = "" }
  $1 == "mod" || $1 == "dep" { last = $2 " " $3 }
  END { if (last) print last }' <<<"$modules" | sort -u)
cat <<JSON
{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"aliquot-$version",
"documentNamespace":"https://aliquot.dev/sbom/$(cat <(echo "$target $linked $modules") Cargo.lock | sha256 | cut -d' ' -f1)",
"creationInfo":{"created":"1970-01-01T00:00:00Z","creators":["Tool: images/sbom.sh"]},
"packages":[
JSON
# Not by -v, in which the awk of a Mac allows no line breaks.
LINKED=$linked awk -F'"' '
  BEGIN { count = split(ENVIRON["LINKED"], lines, "\n"); for (i = 1; i <= count; i++) is_linked[lines[i]] = 1 }
  function out() { if ((name " " version) in is_linked) {
    printf "{\"SPDXID\":\"SPDXRef-%d\",\"name\":\"%s\",\"versionInfo\":\"%s\",\"downloadLocation\":\"NOASSERTION\"", ++n, name, version
    if (sum != "") printf ",\"checksums\":[{\"algorithm\":\"SHA256\",\"checksumValue\":\"%s\"}]", sum
    printf ",\"externalRefs\":[{\"referenceCategory\":\"PACKAGE-MANAGER\",\"referenceType\":\"purl\",\"referenceLocator\":\"pkg:cargo/%s@%s\"}]},\n", name, version }
    name = version = sum = "" }
  /^\[\[package\]\]/ { out() }
  /^name = / { name = $2 }
  /^version = / { version = $2 }
  /^checksum = / { sum = $2 }
  END { out() }' Cargo.lock
awk 'NF {
  printf "{\"SPDXID\":\"SPDXRef-go-%d\",\"name\":\"%s\",\"versionInfo\":\"%s\",\"downloadLocation\":\"NOASSERTION\"", NR, $1, $2
  printf ",\"externalRefs\":[{\"referenceCategory\":\"PACKAGE-MANAGER\",\"referenceType\":\"purl\",\"referenceLocator\":\"pkg:golang/%s@%s\"}]},\n", $1, $2 }' <<<"$modules"
rust=$(rustc --version | cut -d' ' -f2)
cat <<JSON
{"SPDXID":"SPDXRef-std","name":"rust-std","versionInfo":"$rust","downloadLocation":"NOASSERTION",
"externalRefs":[{"referenceCategory":"PACKAGE-MANAGER","referenceType":"purl","referenceLocator":"pkg:generic/rust@$rust"}]}
]}
JSON
