#!/usr/bin/env bash
# Runs every target for the given number of minutes, one after the other, on the
# inputs in corpus/ and those that earlier runs found. Fails at the first broken
# property and leaves its input in artifacts/. `run.sh keep` adds the inputs that
# were found to corpus/, minimised without loss of coverage.
set -euo pipefail
what=${1:?minutes for each target, or keep}
cd "$(dirname "$0")"
top=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
export PATH="$top/tools/bin:$PATH"
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz --version 0.13.2 --root "$top/tools"
# Nothing under test is unsafe: no sanitizer, which triples the speed.
fuzz() { cargo +nightly fuzz "$1" --fuzz-dir . --sanitizer none --features libfuzzer "${@:2}"; }

for target in $(cargo fuzz list --fuzz-dir .); do
    found="$top/fuzz/$target"
    mkdir -p "$found"
    if [ "$what" = keep ]; then
        fuzz run "$target" "corpus/$target" "$found" -- -set_cover_merge=1 -use_counters=0 -use_cmp=0 -max_len=4096
    else
        echo "== $target, $what minutes"
        fuzz run "$target" "$found" "corpus/$target" -- \
            -max_total_time=$((what * 60)) -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
            -verbosity=0 -print_final_stats=1
    fi
done
