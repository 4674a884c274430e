#!/usr/bin/env bash
# Builds the documents as a site in target/docs and checks its links; prints where it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

mdbook=$(tests/style/mdbook.sh)
site=${CARGO_TARGET_DIR:-target}/docs
RUST_LOG=${RUST_LOG:-warn} "$mdbook" build --dest-dir "$PWD/$site"
cargo run --quiet --locked -p aliquot-style --bin site -- "$site"
tests/style/tool.sh lychee --offline --include-fragments --no-progress --quiet --exclude-path "$site/404.html" --root-dir "$PWD/$site" "$site/**/*.html"
echo "open $site/index.html"
