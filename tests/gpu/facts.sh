#!/bin/sh
# What the driver of this machine and its GPU do. Writes FOLDER/facts.json; ends within nine minutes.
#
# usage: facts.sh FOLDER [SCALE]
# SCALE shortens the measurements: 0.1 for a tenth.
exec python3 -B "$(dirname "$0")/facts.py" "$@"
