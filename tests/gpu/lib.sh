# Functions that the scripts share. Sourced, not run.

failed=0

seen() { echo "$1 seen: $2"; }
not_seen() { echo "$1 NOT SEEN: $2" && failed=1; }
skipped() { echo "$1 skipped: $2"; }

# Ends the script with status 2 when nothing can be tested.
refuse() { echo "nothing tested: $1" >&2 && exit 2; }

need() { command -v "$1" >/dev/null || refuse "$1 is not on this machine${2:+ ($2)}"; }

# Runs a command for a minute at most, so that whoever waits for it waits no longer.
bounded() { timeout -k 10 60 "$@"; }

# The UUID of the first GPU.
first_gpu() { bounded nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1; }

# One field of the first GPU, without its unit.
first_gpu_field() { bounded nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits | head -n 1; }
