"""A container with a share of the GPU, on a machine without Kubernetes: what its processes find in
`/.aliquot`, here a link to the directory of the container whose processes start next.

It needs `libvgpu.so` and `container-directory` in its folder (pack.sh), and root. The first part of
a script that uses it is `prepare`, and the script's program is `main`.
"""

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

import parts
import probe
from parts import Unfit, report
from probe import MIB, Driver, Nvml

HERE = os.path.dirname(os.path.abspath(__file__))
LINK = "/.aliquot"
# The directories of containers. Parts, which are processes of their own, inherit its name.
FOLDER = "ALIQUOT_LIMITED_FOLDER"
if FOLDER not in os.environ:
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="aliquot-limited-")
WORK = os.environ[FOLDER]
# What the first part measured, for the others.
PREPARED = os.path.join(WORK, "prepared.json")
# MiB of the share in which `prepare` checks the limiter.
CHECKED = 3000
# Seconds between two readings of the device's memory.
WATCH = 0.02


def prepared():
    """`uuid` and `context_mib` of the GPU, and what else the first part kept."""
    try:
        with open(PREPARED) as file:
            return json.load(file)
    except OSError as error:
        raise RuntimeError(f"the part `prepare` has not succeeded: {error}") from error


def keep(**fields):
    """Adds to what the other parts find in `prepared()`."""
    known = prepared() if os.path.exists(PREPARED) else {}
    with open(PREPARED + ".new", "w") as file:
        json.dump({**known, **fields}, file)
    os.replace(PREPARED + ".new", PREPARED)


class Container:
    """A container with `mib` of the GPU's memory and `percent` of its compute (0: no limit), for
    processes that start with its environment."""

    def __init__(self, mib, percent, name="one", known=None):
        known = known or prepared()
        self.mib, self.folder = mib, os.path.join(WORK, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        files = probe.driver_files()
        words = [
            os.path.join(HERE, "container-directory"), self.folder,
            os.path.join(HERE, "libvgpu.so"), os.path.realpath(files["libcuda"]),
            os.path.realpath(files["libnvidia-ml"]), known["uuid"], mib, percent,
            known["context_mib"],
        ]
        subprocess.run([str(word) for word in words], check=True, timeout=30)

    def environment(self, injection="both"):
        """Of a process in the container, which is linked to `/.aliquot` from now on. One that
        creates a `probe.Driver` ends the command if the driver does not show it this share."""
        if os.path.lexists(LINK) and not os.path.islink(LINK):
            raise RuntimeError(f"{LINK} exists and is no link of this script; expected: none")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(LINK + ".new")
        os.symlink(self.folder, LINK + ".new")
        os.replace(LINK + ".new", LINK)
        environment = {**os.environ, probe.SHARE: str(self.mib)}
        if injection != "preload":
            environment["LD_LIBRARY_PATH"] = parts.prepended("LD_LIBRARY_PATH", f"{LINK}/driver")
        if injection != "replacement":
            environment["LD_PRELOAD"] = parts.prepended("LD_PRELOAD", f"{LINK}/lib/libvgpu.so")
        return environment

    def counted(self):
        """Bytes that the limiter has counted for the container: the low 48 bits of the first
        device's first word in the counters file (limiter/region/src/counters.rs)."""
        with open(os.path.join(self.folder, "counters/slots"), "rb") as file:
            file.seek(4096)
            return struct.unpack("<Q", file.read(8))[0] & (1 << 48) - 1


class Watch:
    """The most memory that the device has used more than before, in MiB; beside a container also
    the most beyond what its limiter had counted at that time."""

    def __init__(self, uuid, container=None):
        self.nvml, self.container = Nvml(uuid), container
        self.before = probe.settled(self.nvml.used)
        self.most, self.beyond, self.beyond_at, self.readings = 0, None, None, 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stopped.wait(WATCH):
            # Counted before it is allocated and after it is freed, so the device is read between.
            before = self.container.counted() if self.container else 0
            used = self.now()
            self.most = max(self.most, used)
            self.readings += 1
            if self.container:
                counted = max(before, self.container.counted()) / MIB
                if self.beyond is None or used - counted > self.beyond:
                    self.beyond = used - counted
                    self.beyond_at = {"device_mib": used, "counted_mib": counted}

    def now(self):
        return (self.nvml.used() - self.before) / MIB

    def figures(self):
        found = {"most_mib": self.most, "readings": self.readings}
        if self.container:
            found.update(most_beyond_count_mib=self.beyond, at_that_time=self.beyond_at)
        return found

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join(timeout=parts.KILLED)


def bare_context():
    report(uuid=Driver().uuid())
    parts.wait_for_end_of_input()


def seen_memory():
    """The GPU as a process in the container sees it."""
    driver = Driver()
    free, total = driver.memory()
    nvml = Nvml(driver.uuid())
    in_nvml = nvml.memory()
    report(
        free_mib=free / MIB,
        total_mib=total / MIB,
        nvml_total_mib=in_nvml["total"] / MIB,
        nvml_used_mib=in_nvml["used"] / MIB,
        nvml_processes=nvml.processes(),
        own_pid=os.getpid(),
    )


def prepare():
    """Checks that the limiter limits, however it is injected, and ends the command where it does
    not: what follows fills shares. Only then the other parts find what they need."""
    if os.getuid():
        raise Unfit(f"user {os.getuid()}; expected: root, who may create {LINK}")
    for name in ("libvgpu.so", "container-directory", "arbiter"):
        if not os.path.isfile(os.path.join(HERE, name)):
            raise Unfit(f"{name} is not beside the script; expected: a folder of pack.sh")
    uuid = own_call("bare_context")["uuid"]
    report(others=Nvml(uuid).processes())
    container = Container(CHECKED, 0, known={"uuid": uuid, "context_mib": 1})
    wrong = []
    for injection in ("replacement", "preload", "both"):
        try:
            answer = own_call("seen_memory", environment=container.environment(injection))
        except (RuntimeError, Unfit) as error:
            answer = {"error": str(error).strip()}
        report(**{f"injection_by_{injection}": answer})
        if answer.get("total_mib") != CHECKED:
            wrong.append(f"{injection}: {answer.get('error', answer)}")
    if wrong:
        raise Unfit(
            f"the limiter does not limit: {'; '.join(wrong)}; expected: total_mib {CHECKED}, the"
            " share, by each injection. No tenant was started."
        )
    with Watch(uuid) as watch, own_worker("bare_context") as process:
        process.wait_for("uuid")
        context = probe.settled(watch.now)
        process.end()
    report(context_mib=context)
    keep(uuid=uuid, context_mib=int(context) or 1)


def own_worker(function, environment=None):
    return parts.Worker(function, script=os.path.abspath(__file__), environment=environment)


def own_call(function, environment=None):
    with own_worker(function, environment) as worker:
        return worker.end(30)


def main(script, functions, own_parts, budget):
    """`parts.main`, which leaves neither the link nor the containers' directories."""
    try:
        parts.main(script, functions, own_parts, budget)
    finally:
        if "--call" not in sys.argv:
            if os.path.islink(LINK):
                os.unlink(LINK)
            shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    parts.main("container", globals(), {})
