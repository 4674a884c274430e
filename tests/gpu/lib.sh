# What the scripts share: they say what they saw, and refuse politely.
# Sourced, not run.

failed=0

seen() { echo "$1 seen: $2"; }
not_seen() { echo "$1 NOT SEEN: $2" && failed=1; }
skipped() { echo "$1 skipped: $2"; }

# Ends the script where there is nothing to look at.
refuse() { echo "nothing looked at: $1" >&2 && exit 2; }

need() { command -v "$1" >/dev/null || refuse "$1 is not on this machine${2:+ ($2)}"; }

# The uuid of the first card.
first_card() { nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1; }

# One field of the first card, without its unit.
of_first_card() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits | head -n 1; }
