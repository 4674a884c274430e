#!/usr/bin/env bash
# Runs the lanes of `make test` N times, and prints for each run how long it took, what failed, and what
# was repeated or not run; at the end each test that failed once, with its count. Ends with an error when
# one failed.
#   tests/repeat.sh N [BUSY]    BUSY: so many loops that use a CPU run beside them
set -u
cd "$(dirname "$0")/.."
runs=${1:?usage: tests/repeat.sh N [BUSY]}
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null' EXIT
for _ in $(seq "${2:-0}"); do
  (while :; do :; done) &
done
for run in $(seq "$runs"); do
  began=$SECONDS state=passed
  make --no-print-directory lanes >"$logs/$run" 2>&1 || state=FAILED
  # The last list of each failed test program; a lane that did not come so far counts as itself.
  awk '/^failures:$/ { listed = 1; next } /^test result/ { listed = 0 } listed && /^    [^ ]/ { print $1 }
    /^failed: / { print "lane:" $0 }' "$logs/$run" | sort -u >"$logs/$run.failed"
  echo "run $run: $state after $((SECONDS - began)) s $(tr '\n' ' ' <"$logs/$run.failed")"
  grep -hE '^ *(repeated|scenarios not run): ' "$logs/$run"
done
cat "$logs"/*.failed | sort | uniq -c | sort -rn
if grep -q . "$logs"/*.failed; then
  echo "what each run printed: $logs"
  exit 1
fi
rm -rf "$logs"
