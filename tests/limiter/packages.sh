#!/usr/bin/env bash
# Unpacks packages of Debian that tests need, once, and prints their folder.
#
# usage: packages.sh here|SUITE PACKAGE...
#
# `here` takes them from the sources of this machine, a suite from the same mirror. Kept under
# ${ALIQUOT_CACHE:-~/.cache/aliquot}. Needs apt-get and dpkg-deb.
set -euo pipefail

suite=${1:?here, or a suite of Debian}
shift
cache=${ALIQUOT_CACHE:-$HOME/.cache/aliquot}
name=debian-$suite-$(printf '%s ' "$@" | sha256sum | cut -c1-16)
folder=$cache/$name
mkdir -p "$cache"
(
    flock 9
    [ ! -e "$folder/.complete" ] || exit 0
    rm -rf "$folder"
    mkdir -p "$folder/.apt/lists/partial" "$folder/.apt/archives/partial"
    # A mirror may be behind, and a network may fail once.
    options=(-qq -o "Dir::Cache::archives=$folder/.apt/archives" -o APT::Sandbox::User=root
        -o Acquire::Retries=5 -o Acquire::Check-Valid-Until=false -o DPkg::Lock::Timeout=300)
    if [ "$suite" != here ]; then
        mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
        keys=/usr/share/keyrings/debian-archive-keyring.gpg
        echo "deb [signed-by=$keys] $mirror $suite main" >"$folder/.apt/sources.list"
        options+=(-o "Dir::Etc::SourceList=$folder/.apt/sources.list" -o Dir::Etc::SourceParts=-
            -o "Dir::State::Lists=$folder/.apt/lists")
    fi
    [ "$suite" = here ] || set -- "${@/%//$suite}"
    cd "$folder/.apt/archives"
    if [ "$suite" != here ] || ! apt-get "${options[@]}" download "$@" 2>/dev/null; then
        apt-get "${options[@]}" update >&2
        apt-get "${options[@]}" download "$@" >&2
    fi
    for package in *.deb; do dpkg-deb -x "$package" "$folder"; done
    rm -rf "$folder/.apt"
    touch "$folder/.complete"
) 9>"$cache/$name.lock"
echo "$folder"
