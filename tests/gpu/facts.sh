#!/bin/sh
# What the driver of this machine and its GPU do, and how processes share its time. Writes
# FOLDER/facts.json; ends within nine minutes.
#
# usage: facts.sh FOLDER [SCALE [PART...]]
# SCALE shortens the measurements: 0.1 for a tenth. Names of parts run only these.
exec python3 -B "$(dirname "$0")/facts.py" "$@"
