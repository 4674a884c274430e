#!/bin/sh
# Whether the limiter enforces a share of this machine's GPU. Writes FOLDER/limited.json; ends
# within seven minutes. Runs as root in a folder that pack.sh made: it links /.aliquot, and removes
# the link.
#
# usage: limited.sh FOLDER [SCALE [PART...]]
# SCALE shortens the measurements: 0.1 for a tenth. Names of parts run only `prepare` and these.
exec python3 -B "$(dirname "$0")/limited.py" "$@"
