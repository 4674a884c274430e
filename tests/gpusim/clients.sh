#!/usr/bin/env bash
# Runs clients of other projects against the libraries in FOLDER (libnvidia-ml.so.1,
# libcuda.so.1) and the machine of GPUSIM_STATE: nvidia-ml-py, nvitop, and the libcudart 10.2 that
# an old torchvision ships. Their Python environment is cached under
# ${ALIQUOT_CACHE:-~/.cache/aliquot}, by the hash of its requirements.
#
# usage: GPUSIM_STATE=FILE clients.sh pynvml|nvitop|cudart FOLDER
#        clients.sh python   prints their Python, and the folder of the one that it came from
set -euo pipefail

client=${1:?which client: pynvml, nvitop or cudart}
if [ "$client" != python ]; then
    folder=${2:?a folder with the libraries}
    : "${GPUSIM_STATE:?the state file of the simulated machine}"
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/clients/requirements.txt
cache=${ALIQUOT_CACHE:-$HOME/.cache/aliquot}
version=$(python3 --version 2>&1 || true)
hash=$({ echo "$version"; cat "$requirements"; } | sha256sum | cut -c1-16)
venv=$cache/venv-$hash

install_debian() {
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "clients.sh: $1 is missing; install the package $2" >&2
        exit 1
    fi
    echo "clients.sh: installing $2" >&2
    apt-get update -qq -o Acquire::Retries=5 >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 "$2" >&2
}

make_venv() {
    command -v python3 >/dev/null || install_debian python3 python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_debian "Python's venv" python3-venv
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --retries 10 --quiet --disable-pip-version-check \
        --requirement "$requirements" >&2
    touch "$venv/.complete"
}

# The runtime of CUDA 10.2, out of a wheel for a Python that is not installed here.
fetch_cudart() {
    rm -rf "$cudart"
    mkdir -p "$cudart"
    "$venv/bin/python" -m pip download --retries 10 --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --python-version 3.9 --platform manylinux1_x86_64 \
        --dest "$cudart" torchvision==0.9.1 >&2
    "$venv/bin/python" -m zipfile -e "$cudart"/torchvision-*.whl "$cudart/unpacked"
    mv "$cudart"/unpacked/torchvision.libs/libcudart.*.so.10.2 "$cudart/libcudart.so.10.2"
    rm -rf "$cudart"/unpacked "$cudart"/torchvision-*.whl
}

cudart=$cache/cudart-10.2
mkdir -p "$cache"
(
    flock 9
    [ -e "$venv/.complete" ] || make_venv
    [ "$client" != cudart ] || [ -e "$cudart/libcudart.so.10.2" ] || fetch_cudart
) 9>"$venv.lock"

if [ "$client" = python ]; then
    echo "$venv/bin/python"
    "$venv/bin/python" -c 'import sys; print(sys.base_prefix)'
    exit
fi
export LD_LIBRARY_PATH=$folder LC_ALL=C.UTF-8 TERM=xterm
case $client in
pynvml) exec timeout 60 "$venv/bin/python" "$here/clients/gpus.py" ;;
nvitop) exec timeout 60 "$venv/bin/python" -m nvitop --once ;;
cudart) exec timeout 60 "$venv/bin/python" "$here/clients/cudart.py" "$cudart/libcudart.so.10.2" ;;
*) echo "clients.sh: no client $client; there are pynvml, nvitop and cudart" >&2 && exit 2 ;;
esac
