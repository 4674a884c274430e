#!/usr/bin/env bash
# Runs commands beside each other, at most two for each processor. Each argument is
# NAME=COMMAND; the output of one that has ended is printed whole. Ends with an error when one of them
# did: names those, after the failures of their tests once more, for a reader who has the last lines only.
#   tests/side-by-side.sh [--table] one='make a' two='make b'
# --table: prints tests and minutes of each at the end. A command of --alone=NAME=COMMAND runs when all
# before it have ended, and nothing beside it.
set -u
logs=$(mktemp -d) table=
trap 'trap - TERM; kill 0' INT TERM
declare -A names=() began=()
failed= rows=

start() {
  bash -c "${1#*=}" >"$logs/${1%%=*}" 2>&1 &
  names[$!]=${1%%=*} began[$!]=$SECONDS
}

# Waits until no more than $1 run.
down_to() {
  while [ ${#names[@]} -gt "$1" ]; do
    wait -n -p pid "${!names[@]}"
    status=$?
    name=${names[$pid]} took=$((SECONDS - began[$pid]))
    unset "names[$pid]"
    state=$([ $status = 0 ] && echo passed || echo "failed with $status")
    echo "== $name: $state after $took s"
    cat "$logs/$name"
    [ $status = 0 ] || failed+=" $name"
    rows+=$(awk -v row="| $name | $state" -v seconds=$took '
      /^test result: / { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) passed += $i; if ($(i+1) ~ /^failed/) broken += $i } }
      END { printf "%s | %d | %d | %.1f |", row, passed, broken, seconds / 60 }' "$logs/$name")$'\n'
  done
}

for argument; do
  case $argument in
    --table) table=yes ;;
    --alone=*) down_to 0; start "${argument#--alone=}"; down_to 0 ;;
    *) down_to $(($(nproc) * 2 - 1)); start "$argument" ;;
  esac
done
down_to 0
for name in $failed; do
  echo "== $name, failures:"
  sed -n '/^failures:$/,/^test result/p' "$logs/$name" | cut -c 1-1500 | head -n 60
done
[ -z "$table" ] || printf '\n%s: %s\n\n| lane | | tests passed | failed | minutes |\n|---|---|---|---|---|\n%s' \
  "$(git describe --always --dirty)" "$(date -u +%F)" "$rows"
rm -rf "$logs"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
