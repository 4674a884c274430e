"""Whether the limiter enforces a share of a GPU. See parts.py for how it runs.

It needs `libvgpu.so`, `container-directory` and `arbiter` in its folder (pack.sh), and root: a
container finds its directory as `/.aliquot`, here a link to the directory of the container whose
processes start next.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64

import parts
import probe
import workload
from parts import report, scaled
from probe import MIB, Driver, DriverError, Nvml

HERE = os.path.dirname(os.path.abspath(__file__))
LINK = "/.aliquot"
# The directories of containers. Parts, which are processes of their own, inherit its name.
FOLDER = "ALIQUOT_LIMITED_FOLDER"
if FOLDER not in os.environ:
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="aliquot-limited-")
WORK = os.environ[FOLDER]
# What the first part measured, for the others.
PREPARED = os.path.join(WORK, "prepared.json")
# MiB of a share in which a library of the machine runs.
ROOMY = 12000
# MiB of the share whose memory is filled.
SMALL = 3000
# Microseconds of the kernels that are measured.
KERNELS = [100, 1000, 10000, 50000, 200000]
# Seconds between two readings of the device's memory, and of the processes' utilisation.
WATCH, POLL = 0.02, 0.5


def prepared():
    try:
        with open(PREPARED) as file:
            return json.load(file)
    except OSError as error:
        raise RuntimeError(f"the part `prepare` has not succeeded: {error}") from error


class Container:
    """A container with a share of the GPU, for processes that start while it is entered."""

    def __init__(self, mib, percent, name="one", known=None):
        known = known or prepared()
        self.folder = os.path.join(WORK, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        files = probe.driver_files()
        words = [
            os.path.join(HERE, "container-directory"), self.folder,
            os.path.join(HERE, "libvgpu.so"), os.path.realpath(files["libcuda"]),
            os.path.realpath(files["libnvidia-ml"]), known["uuid"], mib, percent,
            known["context_mib"],
        ]
        subprocess.run([str(word) for word in words], check=True, timeout=60)

    def environment(self, injection="both"):
        """Of a process in the container, which is linked to `/.aliquot` from now on."""
        if os.path.lexists(LINK) and not os.path.islink(LINK):
            raise RuntimeError(f"{LINK} exists and is no link of this script; expected: none")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(LINK + ".new")
        os.symlink(self.folder, LINK + ".new")
        os.replace(LINK + ".new", LINK)
        environment = dict(os.environ)
        if injection != "preload":
            environment["LD_LIBRARY_PATH"] = parts.prepended("LD_LIBRARY_PATH", f"{LINK}/driver")
        if injection != "replacement":
            environment["LD_PRELOAD"] = parts.prepended("LD_PRELOAD", f"{LINK}/lib/libvgpu.so")
        return environment


class Watch:
    """The most memory that the device has used more than before, in MiB."""

    def __init__(self, uuid):
        self.nvml = Nvml(uuid)
        self.before = probe.settled(self.nvml.used)
        self.most = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stopped.wait(WATCH):
            self.most = max(self.most, self.now())

    def now(self):
        return (self.nvml.used() - self.before) / MIB

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


def worker(function, *arguments, environment=None):
    return parts.Worker(function, *arguments, environment=environment)


def prepare():
    """What the other parts need, measured without the limiter, and how it is injected."""
    if os.getuid():
        raise RuntimeError(f"user {os.getuid()}; expected: root, who may create {LINK}")
    for name in ("libvgpu.so", "container-directory", "arbiter"):
        if not os.path.isfile(os.path.join(HERE, name)):
            raise RuntimeError(f"{name} is not beside the script; expected: a folder of pack.sh")
    uuid = parts.call("bare_context")["uuid"]
    nvml = Nvml(uuid)
    report(others=nvml.processes(), clock_mhz=nvml.number("nvmlDeviceGetClockInfo", 1))
    with Watch(uuid) as watch, worker("bare_context") as process:
        process.wait_for("uuid")
        context = probe.settled(watch.now)
        process.end()
    report(context_mib=context)
    with workload.start("speed") as process:
        rate = process.end()["rate"]
    with workload.start("own_times", rate, *KERNELS) as process:
        own = process.end()["own_us"]
    known = {"uuid": uuid, "context_mib": int(context) or 1, "rate": rate, "own_us": own}
    report(rate=rate, own_us=own)
    container = Container(SMALL, 0, known=known)
    answers = {}
    for injection in ("replacement", "preload", "both"):
        try:
            answers[injection] = parts.call(
                "seen_memory", environment=container.environment(injection)
            )
        except RuntimeError as error:
            answers[injection] = {"error": str(error)}
    report(injection=answers)
    with open(PREPARED, "w") as file:
        json.dump(known, file)
    for injection, answer in answers.items():
        if answer.get("total_mib") != SMALL:
            raise RuntimeError(f"{injection}: {answer}; expected: total_mib {SMALL}")


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


def filled(kind):
    """Fills the share in blocks of 64 and then 2 MiB, and waits until the input ends."""
    driver = Driver()
    fill = {"plain": driver.allocate, "pool": Pool(driver), "physical": Physical(driver),
            "managed": Managed(driver)}[kind]
    free, codes, blocks = driver.memory()[0], {}, {}
    for size in (64 * MIB, 2 * MIB):
        count = 0
        try:
            while count < 10000:
                fill(size)
                count += 1
        except DriverError as error:
            codes[size // MIB] = str(error)
        blocks[size // MIB] = count
    report(
        free_at_first_mib=free / MIB,
        filled_mib=sum(size * count for size, count in blocks.items()),
        refused=codes,
        free_at_last_mib=driver.memory()[0] / MIB,
    )
    parts.wait_for_end_of_input()


class Pool:
    """Memory of the default pool."""

    def __init__(self, driver):
        self.driver, self.stream = driver, driver.stream()

    def __call__(self, size):
        address = c_uint64()
        self.driver("cuMemAllocAsync", byref(address), c_size_t(size), self.stream)
        self.driver("cuStreamSynchronize", self.stream)


class Physical:
    """Memory of cuMemCreate, which needs no mapping to exist."""

    def __init__(self, driver):
        self.driver = driver

    def __call__(self, size):
        # CUmemAllocationProp: pinned memory on device 0, without a handle type.
        words = (c_uint * 8)(1, 0, 1, 0)
        handle = c_uint64()
        self.driver("cuMemCreate", byref(handle), c_size_t(size), words, c_uint64(0))


class Managed:
    """Managed memory, moved to the device."""

    def __init__(self, driver):
        self.driver = driver

    def __call__(self, size):
        driver = self.driver
        address = driver.value(c_uint64, "cuMemAllocManaged", c_size_t(size), 1)
        driver("cuMemPrefetchAsync", c_uint64(address), c_size_t(size), driver.device, None)
        driver("cuCtxSynchronize")


def exact():
    """Whether exactly the memory that is reported free can be allocated."""
    driver = Driver()
    free, _ = driver.memory()

    def code(size):
        address = c_uint64()
        return driver.ask("cuMemAlloc_v2", byref(address), c_size_t(size))

    report(free_mib=free / MIB, more=code(free + 2 * MIB), whole=code(free), after=code(2 * MIB))


def memory():
    """What a tenant gets that fills its share of memory in every way, and what the device uses."""
    uuid = prepared()["uuid"]
    container = Container(SMALL, 0)
    report(limit_mib=SMALL, exact=parts.call("exact", environment=container.environment()))
    for kind in ("plain", "pool", "physical", "managed"):
        environment = Container(SMALL, 0).environment()
        with Watch(uuid) as watch, worker("filled", kind, environment=environment) as process:
            try:
                process.wait_for("filled_mib")
            except RuntimeError as error:
                report(**{kind: {"error": str(error)}})
                continue
            device, processes = probe.settled(watch.now), watch.nvml.processes()
            process.end()
        figures = {"device_mib": device, "most_mib": watch.most, "processes_mib": processes}
        report(**{kind: {**process.result, **figures}})
    shown = subprocess.run(
        ["sh", "-c", "nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader"],
        capture_output=True, text=True, timeout=30, env=container.environment(),
    )
    report(nvidia_smi=shown.stdout.strip() or shown.stderr.strip())


def local_launch(size):
    """A kernel with local memory, in the share."""
    driver = Driver()
    name = f"frame_us_10_local_{size}"
    (kernel,) = driver.kernels((probe.local, name, int(size)))
    value = c_int()
    driver("cuFuncGetAttribute", byref(value), 3, kernel)
    out, before = driver.zeroed(2), driver.memory()[0]
    try:
        driver.launcher(kernel, out, 100)()
        driver("cuCtxSynchronize")
        answer = "launched"
    except DriverError as error:
        answer = str(error)
    report(attribute=value.value, answer=answer, charged_mib=(before - driver.memory()[0]) / MIB)
    parts.wait_for_end_of_input()


def local_memory():
    """Local memory is within the share, or its launch is refused."""
    uuid = prepared()["uuid"]
    for size in (800, 4096, 65536):
        environment = Container(SMALL, 0).environment()
        with Watch(uuid) as watch:
            with worker("local_launch", size, environment=environment) as process:
                process.wait_for("answer")
                device = probe.settled(watch.now)
                result = process.end()
        report(**{f"frame_{size}": {**result, "device_mib": device, "most_mib": watch.most}})


def launches():
    """Nanoseconds of a launch, in bursts that never use up a share."""
    driver = Driver()
    (kernel,) = driver.kernels(probe.timed(probe.spin, 1))
    stream = driver.stream()
    run, best = driver.launcher(kernel, stream=stream), None
    for _ in range(scaled(200, 20)):
        start = time.perf_counter_ns()
        for _ in range(200):
            run()
        took = (time.perf_counter_ns() - start) / 200
        driver("cuStreamSynchronize", stream)
        best = took if best is None else min(best, took)
        time.sleep(0.003)
    report(launch_ns=best)


def launch_cost():
    """What a launch takes bare and behind the limiter; the best of three runs of each."""
    sides = {"bare": None, "memory_only": 0, "limited": 90}
    found = {}
    for _ in range(3):
        for name, percent in sides.items():
            environment = None if percent is None else Container(4000, percent).environment()
            took = parts.call("launches", environment=environment)["launch_ns"]
            found[name] = min(found.get(name, took), took)
            report(launch_ns=found)


class Arbiter:
    """The monitor's arbiter for some containers, with NVML's utilization of their processes."""

    def __init__(self, uuid, tenants):
        self.nvml = Nvml(uuid)
        self.tenants = tenants
        self.process = subprocess.Popen(
            [os.path.join(HERE, "arbiter"), *(container.folder for container, _ in tenants)],
            stdin=subprocess.PIPE, text=True,
        )
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.since, self.polls, self.matched = 0, 0, 0

    def _samples(self):
        for call in (self.nvml.legacy_utilization, self.nvml.utilization):
            code, samples = call(self.since)
            if code == 0:
                return samples
        return []

    def _run(self):
        while not self.stopped.wait(POLL):
            samples = [one for one in self._samples() if one["sm"] <= 100]
            self.since = max([self.since, *(one["at_us"] for one in samples)])
            self.polls += 1
            samples.sort(key=lambda one: one["at_us"])
            newest = {one["pid"]: one["sm"] for one in samples}
            of = [[newest[pid] for pid in pids if pid in newest] for _, pids in self.tenants]
            if not any(of):
                # Nothing is known: the driver gave no sample, or ids of another namespace.
                continue
            self.matched += 1
            self.process.stdin.write(" ".join(str(sum(percents)) for percents in of) + "\n")
            self.process.stdin.flush()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        self.process.stdin.close()
        if self.process.wait(10):
            raise RuntimeError(f"the arbiter ended with {self.process.returncode}")


def shares(tenants, arbitrated=False):
    """What tenants get that work at the same time: each a share in percent (None: without limiter),
    the microseconds of its kernels, and how many of them a graph has."""
    known = prepared()
    most = max(microseconds for _, microseconds, *_ in tenants)
    warm = max(2 * parts.scale(), 0.3, 3 * most / 1e6)
    seconds = max(8 * parts.scale(), 0.5, 20 * most / 1e6 / 0.3 * parts.scale())
    with contextlib.ExitStack() as stack:
        workers, limited = [], []
        for i, (percent, microseconds, *graph) in enumerate(tenants):
            environment = None
            if percent is not None:
                container = Container(4000, percent, f"tenant-{i}")
                environment = container.environment()
            process = stack.enter_context(workload.start(
                "busy", microseconds, known["rate"], warm, seconds, 0, *graph,
                environment=environment,
            ))
            workers.append(process)
            process.wait_for("ready")
            if percent is not None:
                limited.append((container, [process.result["pid"]]))
        arbiter = stack.enter_context(Arbiter(known["uuid"], limited)) if arbitrated else None
        for process in workers:
            process.send("")
        found = []
        for (percent, microseconds, *graph), process in zip(tenants, workers):
            process.wait_for("runs")
            own = known["own_us"][str(microseconds)]
            runs = process.result["runs"] * (graph[0] if graph else 1)
            got = runs * own / 1e4 / process.result["seconds"]
            found.append({"asked": percent, "kernel_us": microseconds, "got": round(got, 2)})
        for process in workers:
            process.end()
        result = {"seconds": seconds, "tenants": found}
        if arbiter:
            result["polls"] = {"made": arbiter.polls, "with_samples": arbiter.matched}
    return result


def share_alone():
    for percent, microseconds in [(30, us) for us in KERNELS] + [(10, 1000), (75, 1000)]:
        report(**{f"{percent}_percent_of_{microseconds}_us": shares([(percent, microseconds)])})


def share_of_graphs():
    report(**{"30_percent_of_graphs": shares([(30, 1000, 10)])})


def share_beside_tenant():
    """Beside a limited tenant, with the arbiter and without, and beside one without a limit."""
    for microseconds in (1000, 10000):
        for name, tenants, arbitrated in [
            ("30_and_60", [(30, microseconds), (60, 1000)], True),
            ("30_and_70", [(30, microseconds), (70, 1000)], True),
            ("30_and_60_without_arbiter", [(30, microseconds), (60, 1000)], False),
            ("30_beside_unlimited", [(30, microseconds), (None, 1000)], False),
        ]:
            report(**{f"{name}_of_{microseconds}_us": shares(tenants, arbitrated)})


def has(name):
    """A library that is installed; imported in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-c", f"import importlib.util as u; exit(not u.find_spec('{name}'))"]
    )
    if found.returncode:
        raise parts.Skipped(f"{name} is not installed")


def sides(function, *arguments):
    """A function bare, with a memory limit alone, and with 30 percent of compute."""
    uuid = prepared()["uuid"]
    for name, percent in (("bare", None), ("memory_only", 0), ("30_percent", 30)):
        environment = dict(os.environ)
        if percent is not None:
            environment = Container(ROOMY, percent).environment()
            # As in a container, where the file with the driver's name is ours.
            environment["TRITON_LIBCUDA_PATH"] = f"{LINK}/driver"
        # Triton links its launcher anew.
        environment["TRITON_CACHE_DIR"] = os.path.join(WORK, f"triton-{name}")
        shutil.rmtree(environment["TRITON_CACHE_DIR"], ignore_errors=True)
        with Watch(uuid) as watch:
            try:
                result = parts.call(function, *arguments, environment=environment, limit=80)
            except RuntimeError as error:
                result = {"error": str(error)}
        report(**{name: {**result, "most_mib": watch.most}})
    report(limit_mib=ROOMY)


def rate_of(work, wait):
    """How often some work is done in a second, after a warm-up."""

    def some(seconds):
        count, begun = 0, time.monotonic()
        while time.monotonic() - begun < seconds:
            for _ in range(8):
                work()
            wait()
            count += 8
        return count / (time.monotonic() - begun)

    some(2 * parts.scale())
    return some(5 * parts.scale())


def torch_work():
    import torch as library

    free, total = library.cuda.mem_get_info()
    one, other = (library.randn(2048, 2048, device="cuda") for _ in range(2))
    rate = rate_of(lambda: one @ other, library.cuda.synchronize)
    report(free_mib=free / MIB, total_mib=total / MIB, products_a_second=rate)
    if total / MIB > ROOMY:
        return
    blocks, answer = [], "nothing"
    try:
        while len(blocks) < 1000:
            blocks.append(library.ones(64 * MIB, dtype=library.uint8, device="cuda"))
    except library.OutOfMemoryError:
        answer = "OutOfMemoryError"
    report(filled_mib=64 * len(blocks), refused=answer)


def torch():
    has("torch")
    sides("torch_work")


def triton_work():
    import triton_program

    triton_program.run(report, rate_of)


def triton():
    has("triton")
    has("torch")
    sides("triton_work")


def jax_work():
    import jax as library
    import jax.numpy as jnp

    device = library.devices()[0]
    matrix = jnp.ones((2048, 2048))
    product = library.jit(lambda a: a @ a * 1e-3)
    newest = [product(matrix)]

    def work():
        newest[0] = product(newest[0])

    rate = rate_of(work, lambda: newest[0].block_until_ready())
    stats = device.memory_stats() or {}
    report(
        platform=device.platform,
        bytes_limit_mib=stats.get("bytes_limit", 0) / MIB,
        products_a_second=rate,
    )


def jax():
    has("jax")
    sides("jax_work")


PARTS = {
    "prepare": 60,
    "memory": 60,
    "share_alone": 140,
    "share_beside_tenant": 150,
    "local_memory": 40,
    "launch_cost": 50,
    "triton": 120,
    "torch": 120,
    "jax": 120,
    "share_of_graphs": 30,
}

if __name__ == "__main__":
    try:
        parts.main("limited", globals(), PARTS)
    finally:
        if "--call" not in sys.argv:
            if os.path.islink(LINK):
                os.unlink(LINK)
            shutil.rmtree(WORK, ignore_errors=True)
