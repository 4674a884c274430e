#!/usr/bin/env bash
# Prints the path of Chromium; installs Debian's package if there is none.
set -euo pipefail
for name in chromium chromium-browser chromium-headless-shell; do
    command -v "$name" && exit 0
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "chromium.sh: Chromium is missing; install the package chromium" >&2
    exit 1
fi
echo "chromium.sh: installing chromium" >&2
apt-get update -qq -o Acquire::Retries=5 >&2
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 chromium >&2
command -v chromium
