#!/usr/bin/env bash
# Runs targets of the Makefile one after the other, each whole whatever failed before, and prints a
# table at the end. Ends with an error when one failed.
#   tests/lanes.sh lane-check chaos
set -u
cd "$(dirname "$0")/.."
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
table='' failed=0
for lane; do
  began=$SECONDS state=passed
  echo "== $lane"
  make --no-print-directory "$lane" 2>&1 | tee "$logs/$lane"
  [ "${PIPESTATUS[0]}" = 0 ] || { state=FAILED; failed=1; }
  row=$(awk -v lane="${lane#lane-}" -v state="$state" -v seconds=$((SECONDS - began)) '
    /^test result: / { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) passed += $i; if ($(i+1) ~ /^failed/) broken += $i } }
    END { printf "| %s | %s | %d | %d | %.1f |", lane, state, passed, broken, seconds / 60 }' "$logs/$lane")
  table+="$row"$'\n'
done
printf '\n%s: %s\n\n| lane | | tests passed | failed | minutes |\n|---|---|---|---|---|\n%s' \
  "$(git describe --always --dirty)" "$(date -u +%F)" "$table"
exit $failed
