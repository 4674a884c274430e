#!/usr/bin/env bash
# Prints the folder that has the custom resource definitions of the projects in
# docs/guides/integrations.md, and the Prometheus operator's of the chart's objects, taken from their Go
# modules; a second run is a look-up.
#   CRDS=$(tests/cluster/crds.sh)
# Cache: $ALIQUOT_CACHE, else ~/.cache/aliquot. Nothing is compiled.
set -euo pipefail
cd "$(dirname "$0")"

# Module, version, checksum as in a go.sum, and where the definitions are.
modules='
sigs.k8s.io/kueue v0.12.3 h1:BwpNe6CSwkP6Y9KiaWPB9eye4cj7RUMs5Q1vbzPNB3I= config/components/crd/bases/kueue.x-k8s.io_*.yaml
sigs.k8s.io/jobset v0.10.1 h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU= config/components/crd/bases/jobset.x-k8s.io_*.yaml
github.com/ray-project/kuberay/ray-operator v1.4.2 h1:A4tGzbIky8sInAUxZBdBb+rrpZ7fbqoxdsOtm559Zqg= config/crd/bases/ray.io_*.yaml
github.com/kserve/kserve v0.15.2 h1:uph7Umk331fvBMrHHpTJNDt6+lf3IAuyiskaQw8wIAk= config/crd/full/serving.kserve.io_inferenceservices.yaml
github.com/prometheus-operator/prometheus-operator v0.82.2 h1:qalPLM8wkvCtu9aHcoSKGDpCZR3aWRMKeHev5WomTBQ= example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
github.com/prometheus-operator/prometheus-operator v0.82.2 h1:qalPLM8wkvCtu9aHcoSKGDpCZR3aWRMKeHev5WomTBQ= example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
'
dir=${ALIQUOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/aliquot}/crds-$(sha256sum <crds.sh | cut -c1-16)
mkdir -p "$dir"
(
  flock 9 # two runs on one machine take them once
  [ ! -e "$dir/.complete" ] || exit 0
  while read -r module version sum files; do
    [ -n "$module" ] || continue
    echo "taking the definitions of $module $version from its Go module" >&2
    # In a folder of no module, so that none counts as needed by one of ours.
    found=$(cd / && go mod download -json "$module@$version")
    grep -qF "\"Sum\": \"$sum\"" <<<"$found" || {
      echo "crds.sh: $module $version has another checksum than $sum" >&2
      exit 1
    }
    folder=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$found")
    # shellcheck disable=SC2086 # a pattern
    install -m 644 -t "$dir" "$folder"/$files
  done <<<"$modules"
  : >"$dir/.complete"
) 9>"$dir/.lock"
echo "$dir"
