#!/usr/bin/env python3
"""Joins the images of one machine each into one image for all of them, as an OCI layout.

    release/image.py FOLDER ARCHIVE...

Each archive is an OCI archive of one image. FOLDER gets the layout `image`, and for each machine the
SBOM that its image has inside, aliquot_image_OS_ARCH.spdx.json. Prints the digest of the image, and
that of each machine's, before anything is pushed: `DIGEST index`, `DIGEST OS_ARCH`.
"""

import gzip
import hashlib
import io
import json
import pathlib
import shutil
import sys
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
SBOM = "usr/share/aliquot/sbom.spdx.json"


def fail(message):
    sys.exit(f"image.py: {message}")


class Archive:
    """The only image of an OCI archive."""

    def __init__(self, path):
        try:
            self.tar = tarfile.open(path)
        except (OSError, tarfile.TarError) as error:
            # Of an unknown format, each possible one has a line.
            fail(f"{path}: {str(error).splitlines()[0]} expected: an OCI archive")
        names = {name.removeprefix("./"): name for name in self.tar.getnames()}
        self.read = lambda name: self.tar.extractfile(names[name]).read()
        if "index.json" not in names:
            fail(f"{path} has no index.json, expected: an OCI archive")
        images = json.loads(self.read("index.json"))["manifests"]
        if len(images) != 1:
            fail(f"{path} has {len(images)} images, expected: one")
        fields = ("mediaType", "digest", "size")
        self.descriptor = {field: images[0][field] for field in fields}
        self.manifest = json.loads(self.blob(self.descriptor))
        config = json.loads(self.blob(self.manifest["config"]))
        self.platform = {"architecture": config["architecture"], "os": config["os"]}

    def blob(self, descriptor):
        """The content that a descriptor names."""
        content = self.read("blobs/" + descriptor["digest"].replace(":", "/"))
        found = "sha256:" + hashlib.sha256(content).hexdigest()
        if found != descriptor["digest"]:
            fail(f"a blob has the digest {found}, expected: {descriptor['digest']}")
        return content

    def sbom(self):
        """The SBOM in the last layer that has one."""
        for layer in reversed(self.manifest["layers"]):
            content = self.blob(layer)
            if content[:2] == b"\x1f\x8b":
                content = gzip.decompress(content)
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                for entry in tar:
                    if entry.name.removeprefix("./") == SBOM:
                        return tar.extractfile(entry).read()
        fail(f"the image for {name(self.platform)} has no /{SBOM}")


def name(platform):
    return f"{platform['os']}_{platform['architecture']}"


def main(folder, paths):
    folder = pathlib.Path(folder)
    archives = sorted((Archive(path) for path in paths), key=lambda one: name(one.platform))
    names = [name(archive.platform) for archive in archives]
    if len(set(names)) != len(names):
        fail(f"images for {', '.join(names)}, expected: one for each machine")
    layout = folder / "image"
    shutil.rmtree(layout, ignore_errors=True)
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for archive in archives:
        manifest = archive.manifest
        for descriptor in [archive.descriptor, manifest["config"], *manifest["layers"]]:
            (blobs / descriptor["digest"].split(":")[1]).write_bytes(archive.blob(descriptor))
        (folder / f"aliquot_image_{name(archive.platform)}.spdx.json").write_bytes(archive.sbom())
    manifests = [{**archive.descriptor, "platform": archive.platform} for archive in archives]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).encode()
    (layout / "index.json").write_bytes(index)
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    print("sha256:" + hashlib.sha256(index).hexdigest(), "index")
    for archive in archives:
        print(archive.descriptor["digest"], name(archive.platform))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        fail(f"{len(sys.argv) - 1} arguments, expected: a folder and the archives of images")
    main(sys.argv[1], sys.argv[2:])
