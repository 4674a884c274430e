#!/usr/bin/env bash
# Builds kubectl-aliquot and puts it with its licence into kubectl-aliquot_VERSION_OS_ARCH.tar.gz, with
# its SBOM beside it.
#   release/kubectl-aliquot.sh TARGET FOLDER
# TARGET: of Linux on any machine (for glibc 2.17 or newer), of darwin on a Mac, whose SDK it needs.
# $PROGRAM: the program, if it is built already.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
TARGET=${1:-} FOLDER=${2:-}
need TARGET '(x86_64|aarch64)-(unknown-linux-gnu|apple-darwin)' \
  "x86_64- or aarch64-unknown-linux-gnu, or x86_64- or aarch64-apple-darwin, as the first argument"
need FOLDER '.+' "the folder for the files of the release, as the second argument"
mkdir -p "$FOLDER"
folder=$(cd "$FOLDER" && pwd)
cd "$top"
case $TARGET in *-darwin) platform=darwin ;; *) platform=linux ;; esac
case $TARGET in x86_64-*) platform=${platform}_amd64 ;; *) platform=${platform}_arm64 ;; esac

if [ -z "${PROGRAM:-}" ]; then
  rustup target list --installed | grep -qx "$TARGET" || rustup target add "$TARGET" >&2
  export CARGO_PROFILE_RELEASE_STRIP=symbols
  case $TARGET in
  *-darwin)
    [ "$(uname)" = Darwin ] || fail "TARGET is \"$TARGET\" on $(uname), expected: a Mac, which has the SDK that it links"
    cargo build --locked --release -p aliquot-cli --target "$TARGET" >&2
    ;;
  *)
    PATH=$(limiter/zig.sh):$PATH
    cargo zigbuild --locked --release -p aliquot-cli --target "$TARGET.2.17" >&2
    ;;
  esac
  PROGRAM=${CARGO_TARGET_DIR:-target}/$TARGET/release/kubectl-aliquot
fi

name=kubectl-aliquot_${version}_$platform
images/sbom.sh "$version" /dev/null "$TARGET" aliquot-cli >"$folder/$name.spdx.json"
# Not by tar, whose options differ on a Mac: the same program gives the same archive.
python3 - "$folder/$name.tar.gz" "$PROGRAM" <<'PYTHON'
import gzip, sys, tarfile

archive, program = sys.argv[1:]
with open(archive, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, name, mode in (("LICENSE", "LICENSE", 0o644), (program, "kubectl-aliquot", 0o755)):
            entry = tarfile.TarInfo(name)
            with open(path, "rb") as content:
                entry.size, entry.mode = content.seek(0, 2), mode
                content.seek(0)
                tar.addfile(entry, content)
PYTHON
echo "$folder/$name.tar.gz"
