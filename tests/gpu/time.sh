#!/bin/sh
# What the clocks of this machine's GPU report, and how processes share its time. Writes
# FOLDER/time.json; ends within nine minutes.
#
# usage: time.sh FOLDER [SCALE]
# SCALE shortens the measurements: 0.1 for a tenth.
exec python3 -B "$(dirname "$0")/timing.py" "$@"
