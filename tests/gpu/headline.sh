#!/bin/sh
# What a language model of two billion parameters generates on this machine's GPU: alone, and in
# shares of it. Writes FOLDER/headline.json; ends within five minutes. Runs as root in a folder that
# pack.sh made: it links /.aliquot, and removes the link.
#
# usage: headline.sh FOLDER [SCALE [PART...]]
# SCALE shortens the measurements: 0.1 for a tenth. Names of parts run only `prepare` and these; all
# are compared with `alone`.
exec python3 -B "$(dirname "$0")/headline.py" "$@"
