#!/usr/bin/env bash
# Runs commands beside each other. Each argument is NAME=COMMAND; the output of one that has
# ended is printed whole. Ends with an error when one of them did: names those, after the failures
# of their tests once more, for a reader who has the last lines only.
#   tests/side-by-side.sh one='make a' two='make b'
set -u
logs=$(mktemp -d)
trap 'trap - TERM; kill 0' INT TERM
declare -A names
for argument; do
  name=${argument%%=*}
  bash -c "${argument#*=}" >"$logs/$name" 2>&1 &
  names[$!]=$name
done
failed=
while [ ${#names[@]} -gt 0 ]; do
  wait -n -p pid "${!names[@]}"
  status=$?
  name=${names[$pid]}
  unset "names[$pid]"
  echo "== $name: $([ $status = 0 ] && echo done || echo "failed with $status") after $SECONDS s"
  cat "$logs/$name"
  [ $status = 0 ] || failed+=" $name"
done
for name in $failed; do
  echo "== $name, failures:"
  sed -n '/^failures:$/,/^test result/p' "$logs/$name" | cut -c 1-1500 | head -n 60
done
rm -rf "$logs"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
