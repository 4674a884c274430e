#!/usr/bin/env bash
# Prints docs/reference/values.md: values.md.gotmpl, filled by helm-docs with the keys, defaults and
# comments of the chart's values.yaml. helm-docs is built from its Go module where this machine has none
# of this version; Go's checksum database vouches for the module.
set -euo pipefail
cd "$(dirname "$0")"
. ../../hack/cache.sh

build() {
  echo "building helm-docs from its Go module (once)"
  GOBIN=$dir CGO_ENABLED=0 go install -trimpath -ldflags="-s -w" github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2
}
kept helm-docs values-reference.sh
"$dir/helm-docs" --dry-run --log-level=warning --sort-values-order=file \
  --chart-search-root=../../charts/aliquot --template-files="$PWD/values.md.gotmpl"
