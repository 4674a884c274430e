#!/usr/bin/env python3
"""Prints the provenance of a release, a predicate of SLSA 1.0: from which commit and base images it was
built, by which workflow.

    SOURCE=... REVISION=... TAG=... BUILDER=... INVOCATION=... release/provenance.py

BUILDER names the workflow that builds, INVOCATION its run; on another machine, whoever builds.
"""

import json
import os
import pathlib
import re
import sys


def given(name, expected):
    value = os.environ.get(name, "")
    if not value:
        sys.exit(f'provenance.py: {name} is "", expected: {expected}')
    return value


def materials(source, revision):
    """The commit, and the base images that the Dockerfile pins."""
    yield {"uri": f"git+{source}", "digest": {"gitCommit": revision}}
    dockerfile = pathlib.Path(__file__).parent.parent / "images" / "Dockerfile"
    for image, digest in re.findall(r"(?:FROM |--from=)(\S+)@sha256:([0-9a-f]{64})", dockerfile.read_text()):
        yield {"uri": f"docker://{image}", "digest": {"sha256": digest}}


def main():
    source = given("SOURCE", "the address of the source repository")
    revision = given("REVISION", "the commit that was built")
    tag = given("TAG", "the tag of the release, such as v0.1.0")
    builder = given("BUILDER", "the address of the workflow that builds, or of whoever builds")
    invocation = given("INVOCATION", "the address of the workflow's run, or the name of the build")
    predicate = {
        "buildDefinition": {
            "buildType": f"{source}/tree/{revision}/release",
            "externalParameters": {"source": source, "tag": tag},
            "resolvedDependencies": list(materials(source, revision)),
        },
        "runDetails": {"builder": {"id": builder}, "metadata": {"invocationId": invocation}},
    }
    json.dump(predicate, sys.stdout, indent=1)


main()
