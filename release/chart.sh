#!/usr/bin/env bash
# Packages the chart of a release, whose image is named by its digest.
#   REPOSITORY=... DIGEST=... SOURCE=... release/chart.sh FOLDER
# REPOSITORY: where the image was pushed. DIGEST: the image's there. SOURCE: the address of the source
# repository. $HELM: helm, built from its Go module if it is not set.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-}
need_folder
need_repository
need_source
need DIGEST 'sha256:[0-9a-f]{64}' "sha256: and the 64 hexadecimal digits of the image's digest"
helm=${HELM:-$("$top/hack/helm.sh")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$top/charts/aliquot" "$work/"
python3 - "$work/aliquot" "$REPOSITORY" "$DIGEST" "$SOURCE" <<'PYTHON'
import pathlib, re, sys

chart, image, digest, source = sys.argv[1:]
registry, repository = image.split("/", 1)

def replace(file, old, new):
    path = pathlib.Path(chart, file)
    text = path.read_text()
    if text.count(old) != 1:
        sys.exit(f"chart.sh: {file} has {old!r} {text.count(old)} times, expected: once")
    path.write_text(text.replace(old, new))

replace("values.yaml", '  registry: ""\n', f'  registry: {registry}\n')
replace("values.yaml", '  repository: ""\n', f'  repository: {repository}\n')
version = re.search("^version: (.+)$", pathlib.Path(chart, "Chart.yaml").read_text(), re.M)[1]
replace("values.yaml", "as in a release's chart.\n  tag: \"\"\n",
        f'as in a release\'s chart.\n  tag: {version}@{digest}\n')
replace("Chart.yaml", "annotations:\n", f"""sources: [{source}]
annotations:
  artifacthub.io/images: |
    - name: aliquot
      image: {image}:{version}@{digest}
""")
PYTHON
"$helm" package "$work/aliquot" -d "$FOLDER" | sed 's/.*: //'
