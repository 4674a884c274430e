#!/usr/bin/env bash
# Checks the words of the documents, builds them as a site in target/docs and checks its links; prints
# where it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

vale=$(tests/style/vale.sh)
git ls-files -z '*.md' | xargs -0 "$vale" --config tests/style/vale.ini --no-global --output line
mdbook=$(tests/style/mdbook.sh)
site=${CARGO_TARGET_DIR:-target}/docs
RUST_LOG=${RUST_LOG:-warn} "$mdbook" build --dest-dir "$PWD/$site"
cargo run --quiet --locked -p aliquot-style --bin site -- "$site"
tests/style/tool.sh lychee --offline --include-fragments --no-progress --quiet --exclude-path "$site/404.html" --root-dir "$PWD/$site" "$site/**/*.html"
echo "open $site/index.html"
