"""Whether the limiter enforces a share of a GPU. See container.py for how a share is made, and
parts.py for how this runs."""

import contextlib
import glob
import os
import shutil
import subprocess
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64

import container
import parts
import probe
import sharing
import workload
from container import HERE, LINK, WORK, Container, Watch, keep, prepared
from parts import report, scaled
from probe import MIB, Driver, DriverError, Nvml, cost

# MiB of a share in which a library of the machine runs.
ROOMY = 12000
# MiB of the share whose memory is filled.
SMALL = container.CHECKED
# Nothing allocates more than so many shares: a limiter that does not limit must not take the GPU.
BOUND = 2
# Microseconds of the kernels that are measured.
KERNELS = [2, 10, 30, 100, 1000, 10000, 50000, 200000]
# Seconds between two readings of the processes' utilisation.
POLL = 0.5
# How a library runs: percent of compute in a container, None without the limiter.
SIDES = {"bare": None, "memory_only": 0, "30_percent": 30}


def worker(function, *arguments, environment=None):
    return parts.Worker(function, *arguments, environment=environment)


def prepare():
    """Checks the limiter, and measures without it how long kernels take alone."""
    container.prepare()
    with workload.start("speed") as process:
        rate = process.end()["rate"]
    report(rate=rate)
    with workload.start("own_times", rate, *KERNELS) as process:
        own = process.end()["own_us"]
    report(own_us=own)
    keep(rate=rate, own_us=own)


def filled(kind):
    """After a line fills the share in blocks of 64, then 2 MiB; waits for the input's end."""
    driver = Driver()
    report(ready=True)
    parts.next_input()
    fill = {"plain": driver.allocate, "pool": Pool(driver), "physical": Physical(driver),
            "managed": Managed(driver)}[kind]
    free, codes, got = driver.memory()[0], {}, 0
    for size in (64 * MIB, 2 * MIB):
        codes[size // MIB] = f"not refused up to {BOUND} shares"
        try:
            while got + size <= BOUND * SMALL * MIB:
                fill(size)
                got += size
        except DriverError as error:
            codes[size // MIB] = str(error)
    report(
        free_at_first_mib=free / MIB,
        filled_mib=got / MIB,
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
    uuid, failed = prepared()["uuid"], []
    box = Container(SMALL, 0)
    report(limit_mib=SMALL, exact=parts.call("exact", environment=box.environment()))
    for kind in ("plain", "pool", "physical", "managed"):
        environment = Container(SMALL, 0).environment()
        with Watch(uuid) as watch, worker("filled", kind, environment=environment) as process:
            try:
                process.wait_for("ready")
                process.send("")
                process.wait_for("filled_mib")
            except RuntimeError as error:
                report(**{kind: {"error": str(error)}})
                failed.append(kind)
                continue
            device, processes = probe.settled(watch.now), watch.nvml.processes()
            process.end()
        figures = {"device_mib": device, "processes_mib": processes, **watch.figures()}
        report(**{kind: {**process.result, **figures}})
    shown = subprocess.run(
        ["sh", "-c", "nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader"],
        capture_output=True, text=True, timeout=15, env=box.environment(),
    )
    report(nvidia_smi=shown.stdout.strip() or shown.stderr.strip())
    if failed:
        raise RuntimeError(f"not filled: {', '.join(failed)}")


def taken_after(mib):
    """Milliseconds after a line until so much memory can be allocated."""
    driver = Driver()
    report(ready=True)
    parts.next_input()
    report(after_ms=sharing.until(lambda: driver.try_allocate(int(mib) * MIB) is not None))


def processes():
    """Three processes that fill one share together. After SIGKILL of one: when the others can have
    its memory, when the device has it back, and whether a forked child keeps it."""
    uuid, wanted = prepared()["uuid"], 256
    box = Container(SMALL, 0)
    environment = box.environment()
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch(uuid, box))
        waiting = stack.enter_context(worker("taken_after", wanted, environment=environment))
        waiting.wait_for("ready")
        all_three = [
            stack.enter_context(worker("filled", "plain", environment=environment))
            for _ in range(3)
        ]
        for process in all_three:
            process.wait_for("ready")
        for process in all_three:
            process.send("")
        got = [process.wait_for("filled_mib") for process in all_three]
        before = probe.settled(watch.now)
        report(filled_mib=got, device_mib=before, counted_mib=box.counted() / MIB,
               processes_mib=watch.nvml.processes())
        largest = got.index(max(got))
        all_three[largest].kill()
        waiting.send("")
        report(
            killed_mib=got[largest],
            # The other takes its part of it as soon as it can.
            device_free_after_ms=sharing.until(
                lambda: watch.now() <= before - got[largest] + wanted
            ),
            others_have_it_after_ms=waiting.wait_for("after_ms"),
        )
        report(**watch.figures())
    box = Container(SMALL, 0)
    with Watch(uuid, box) as watch:
        seen = lambda: {
            "device_mib": probe.settled(watch.now),
            "free_mib": parts.call("seen_memory", script=container.__file__,
                                   environment=box.environment())["free_mib"],
            "counted_mib": box.counted() / MIB,
        }
        with worker("hold", 1024, 0, 1, environment=box.environment()) as process:
            child = process.wait_for("child")
            process.wait_for("ready")
            steps = {"held": seen()}
            process.kill()
            steps["parent_killed"] = seen()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
            steps["child_killed"] = seen()
        report(forked=steps)


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
    for _ in range(scaled(100, 20)):
        start = time.perf_counter_ns()
        for _ in range(200):
            run()
        took = (time.perf_counter_ns() - start) / 200
        driver("cuStreamSynchronize", stream)
        best = took if best is None else min(best, took)
        time.sleep(0.003)
    report(launch_ns=best)


def lookups():
    """Nanoseconds of looking up a function, and of two calls that the limiter does not replace."""
    driver = Driver()
    library, stream = driver.library, driver.stream()
    pool = driver.value(c_uint64, "cuDeviceGetDefaultMemPool", driver.device)
    pool, value, status, zero = c_uint64(pool), c_uint64(), c_int(), c_uint64(0)
    report(**{
        f"cuGetProcAddress_of_{name}_ns": cost(
            lambda: library.cuGetProcAddress_v2(text, byref(value), 12000, zero, byref(status)),
            0, 200)
        for name, text in probe.PROCEDURES.items()
    })
    report(
        cuStreamGetCtx_ns=cost(lambda: library.cuStreamGetCtx(stream, byref(value))),
        cuMemPoolGetAttribute_ns=cost(lambda: library.cuMemPoolGetAttribute(pool, 5, byref(value))),
    )


def launch_cost():
    """What a launch takes bare and behind the limiter, the best of three runs of each; and what a
    look-up takes."""
    boxes = {
        "bare": None,
        "memory_only": Container(4000, 0, "memory-only"),
        "limited": Container(4000, 90, "limited"),
    }
    found = {}
    for _ in range(3):
        for name, box in boxes.items():
            environment = box.environment() if box else None
            took = parts.call("launches", environment=environment)["launch_ns"]
            found[name] = min(found.get(name, took), took)
        report(launch_ns=found)
    for name, box in boxes.items():
        environment = box.environment() if box else None
        report(**{f"look_ups_{name}": parts.call("lookups", environment=environment)})


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
        self.thread.join(timeout=parts.KILLED)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            status = self.process.wait(timeout=parts.KILLED)
        except subprocess.TimeoutExpired:
            status = parts.killed(self.process) or "SIGKILL"
        if status:
            raise RuntimeError(f"the arbiter ended with {status}")


def shares(tenants, arbitrated=False, seconds=4):
    """What tenants get that work at the same time: each a share in percent (None: without limiter),
    the microseconds of its kernels, and what else `workload.busy` takes: how many of them a graph
    has, the streams, and whether their durations vary."""
    known = prepared()
    most = max(microseconds for _, microseconds, *_ in tenants)
    warm = max(1.5 * parts.scale(), 0.3, 3 * most / 1e6)
    seconds = max(seconds * parts.scale(), 0.5, 10 * most / 1e6 / 0.3 * parts.scale())
    with contextlib.ExitStack() as stack:
        workers, limited = [], []
        for i, (percent, microseconds, *more) in enumerate(tenants):
            environment = None
            if percent is not None:
                box = Container(4000, percent, f"tenant-{i}")
                environment = box.environment()
            process = stack.enter_context(workload.start(
                "busy", microseconds, known["rate"], warm, seconds, 0, *more,
                environment=environment,
            ))
            workers.append(process)
            process.wait_for("ready")
            if percent is not None:
                limited.append((box, [process.result["pid"]]))
        arbiter = stack.enter_context(Arbiter(known["uuid"], limited)) if arbitrated else None
        for process in workers:
            process.send("")
        found = []
        for (percent, microseconds, *_), process in zip(tenants, workers):
            process.wait_for("runs")
            rate = process.result["runs"] / process.result["seconds"]
            got = rate * known["own_us"][str(microseconds)] / 1e4
            found.append({"asked": percent, "kernel_us": microseconds, "got": round(got, 2),
                          "runs_a_second": round(rate, 1)})
        for process in workers:
            process.end()
        result = {"seconds": round(seconds, 1), "tenants": found}
        if arbiter:
            result["polls"] = {"made": arbiter.polls, "with_samples": arbiter.matched}
    return result


def of_unlimited(*work):
    """A share of 30 %, by the same work without the limiter."""
    both = {name: shares([(percent, *work)]) for name, percent in (("bare", None), ("limited", 30))}
    rates = [both[name]["tenants"][0]["runs_a_second"] for name in ("bare", "limited")]
    return {**both, "percent_of_bare": round(100 * rates[1] / rates[0], 1) if rates[0] else None}


def share_alone():
    for percent, microseconds in [(30, us) for us in KERNELS] + [(10, 1000), (75, 1000)]:
        report(**{f"{percent}_percent_of_{microseconds}_us": shares([(percent, microseconds)])})


def share_of_graphs():
    report(**{"30_percent_of_graphs": shares([(30, 1000, 10)])})


def share_of_streams():
    """Four streams, whose kernels run at the same time."""
    report(**of_unlimited(1000, 1, 4))


def share_of_varying():
    """One kernel with one grid whose launches take the time of its name, but every tenth a hundred
    times as long (not on the simulator): persistent kernels, FlashAttention, stream-K."""
    report(**of_unlimited(100, 1, 1, 1))


def share_beside_tenant():
    """Beside a limited tenant, with the arbiter and without, and beside one without a limit."""
    every = [
        ("30_and_60", [30, 60], True),
        ("30_and_70", [30, 70], True),
        ("30_beside_unlimited", [30, None], False),
        ("30_and_60_without_arbiter", [30, 60], False),
    ]
    for microseconds, some in ((1000, every), (10000, every[:3])):
        for name, (one, other), arbitrated in some:
            tenants = [(one, microseconds), (other, 1000)]
            report(**{f"{name}_of_{microseconds}_us": shares(tenants, arbitrated, 5)})


def sides(function, names=tuple(SIDES), limit=30, more=()):
    """A function bare, with a memory limit alone, or with 30 percent of compute. One that fails
    does not stop the others."""
    uuid, failed = prepared()["uuid"], []
    report(limit_mib=ROOMY)
    for name in names:
        environment, box = dict(os.environ), None
        if SIDES[name] is not None:
            box = Container(ROOMY, SIDES[name])
            environment = box.environment()
            # As in a container, where the file with the driver's name is ours.
            environment["TRITON_LIBCUDA_PATH"] = f"{LINK}/driver"
        # Triton links its launcher anew.
        for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            environment[variable] = os.path.join(WORK, f"{variable}-{name}")
            shutil.rmtree(environment[variable], ignore_errors=True)
        environment.update(more)
        with Watch(uuid, box) as watch, worker(function, environment=environment) as process:
            try:
                process.end(limit)
            except RuntimeError as error:
                process.result["error"] = str(error)
                failed.append(name)
        report(**{name: {**process.result, **watch.figures()}})
    if failed:
        raise RuntimeError(f"{function} failed: {', '.join(failed)}")


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

    some(parts.scale())
    return some(3 * parts.scale())


def checked(name):
    """Imports a library, after a check that this process sees its share where it has one."""
    Driver(context=False)
    return __import__(name)


def filled_by_torch(library):
    """Fills the share, frees every other block, and fills it again in larger ones."""
    total = library.cuda.mem_get_info()[1] / MIB
    if total > ROOMY:
        return

    def fill(mib, most):
        blocks, answer = [], f"not refused up to {BOUND} shares"
        try:
            while (len(blocks) + 1) * mib <= most:
                blocks.append(library.ones(mib * MIB, dtype=library.uint8, device="cuda"))
        except library.OutOfMemoryError:
            answer = "OutOfMemoryError"
        return blocks, answer

    blocks, answer = fill(64, BOUND * ROOMY)
    got = 64 * len(blocks)
    report(filled_mib=got, refused=answer, reserved_mib=library.cuda.memory_reserved() / MIB)
    del blocks[::2]
    library.cuda.synchronize()
    again, answer = fill(256, BOUND * ROOMY - 64 * len(blocks))
    report(again_mib=256 * len(again) + 64 * len(blocks), again_refused=answer,
           free_mib=library.cuda.mem_get_info()[0] / MIB)


def torch_work():
    library = checked("torch")
    free, total = library.cuda.mem_get_info()
    one, other = (library.randn(2048, 2048, device="cuda") for _ in range(2))
    rate = rate_of(lambda: one @ other, library.cuda.synchronize)
    report(free_mib=free / MIB, total_mib=total / MIB, products_a_second=rate)
    image = library.ones(8, 3, 224, 224, device="cuda")
    library.nn.Conv2d(3, 32, 3).cuda()(image).sum().item()
    report(after_convolution_mib=library.cuda.memory_reserved() / MIB)
    filled_by_torch(library)


def torch():
    parts.needs("torch")
    sides("torch_work")


def torch_graph_work():
    library = checked("torch")
    one = library.randn(1024, 1024, device="cuda")
    side = library.cuda.Stream()
    with library.cuda.stream(side):
        for _ in range(3):
            (one @ one).relu()
    side.synchronize()
    graphs, outs = [], []
    for _ in range(10):
        graph = library.cuda.CUDAGraph()
        with library.cuda.graph(graph):
            outs.append((one @ one).relu() + 1)
        graphs.append(graph)
    graphs[-1].replay()
    library.cuda.synchronize()
    expected = (one @ one).relu() + 1
    report(
        right=bool(library.allclose(outs[-1], expected, rtol=1e-3, atol=1e-2)),
        reserved_mib=library.cuda.memory_reserved() / MIB,
        replays_a_second=rate_of(graphs[-1].replay, library.cuda.synchronize),
    )


def torch_graph():
    parts.needs("torch")
    sides("torch_graph_work", ["bare", "30_percent"])


def torch_fill_work():
    library = checked("torch")
    report(backend=library.cuda.get_allocator_backend())
    filled_by_torch(library)


def with_allocator(setting):
    """Torch's allocator with a setting, which two of its releases read from different variables."""
    parts.needs("torch")
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    sides("torch_fill_work", ["30_percent"], more=dict.fromkeys(names, setting))


def torch_expandable():
    with_allocator("expandable_segments:True")


def torch_malloc_async():
    with_allocator("backend:cudaMallocAsync")


def torch_compile_work():
    library = checked("torch")
    one = library.randn(1024, 1024, device="cuda")

    def plain(matrix):
        return (matrix @ matrix).relu() * 2 + 1

    begun = time.monotonic()
    compiled = library.compile(plain, mode="reduce-overhead")
    for _ in range(4):
        out = compiled(one).clone()
    library.cuda.synchronize()
    report(
        compiled_after_s=round(time.monotonic() - begun, 1),
        right=bool(library.allclose(out, plain(one), rtol=1e-3, atol=1e-2)),
        runs_a_second=rate_of(lambda: compiled(one), library.cuda.synchronize),
    )


def torch_compile():
    """torch.compile with CUDA graphs."""
    parts.needs("torch")
    parts.needs("triton")
    sides("torch_compile_work", ["30_percent"], 60)


def triton_work():
    checked("torch")
    import triton_program

    triton_program.run(report, rate_of)


def triton():
    parts.needs("triton")
    parts.needs("torch")
    sides("triton_work", ["bare", "30_percent"])


def jax_work():
    library = checked("jax")
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
    parts.needs("jax")
    sides("jax_work", ["bare", "30_percent"], 40)


def small_work():
    """A kernel and its result, for a tool that watches this program."""
    driver = Driver()
    (kernel,) = driver.kernels(probe.timed(probe.spin, 100))
    out = driver.zeroed(2)
    driver.launcher(kernel, out)()
    driver("cuCtxSynchronize")
    report(ended_well=True)


def path_of(name):
    """A tool of CUDA, which the search path may lack."""
    places = [f"/usr/local/cuda*/bin/{name}", f"/opt/nvidia/nsight-compute/*/{name}"]
    found = [shutil.which(name), *(path for place in places for path in sorted(glob.glob(place)))]
    return next((path for path in found if path), None)


def tools():
    """NVIDIA's tools for programs, with a program behind the limiter, and without it where that
    fails."""
    program = parts.command("small_work")
    words = {
        "compute-sanitizer": ["--tool", "memcheck"],
        "ncu": ["--target-processes", "all"],
        "cuda-gdb": ["--batch", "-ex", "run", "--args"],
    }
    found = {name: path_of(name) for name in words}
    if not any(found.values()):
        raise parts.Skipped(f"none of {', '.join(words)} is installed")
    box = Container(SMALL, 30)
    for name, path in found.items():
        if not path:
            report(**{name: "not installed"})
            continue
        for side, environment in (("limited", box.environment()), ("bare", None)):
            answer = parts.tool(path, *words[name], *program, limit=20, environment=environment)
            answer["ended_well"] = '{"ended_well": true}' in answer["output"]
            report(**{f"{name} {side}": answer})
            if answer["ended_well"]:
                break


# Seconds. Those of all are more than the budget, of which the parts took half on the simulator,
# where no library is installed: one that ends early leaves its time to the last ones.
PARTS = {
    "prepare": 40,
    "torch": 70,
    "triton": 45,
    "jax": 60,
    "torch_graph": 40,
    "torch_expandable": 25,
    "torch_malloc_async": 25,
    "memory": 30,
    "processes": 30,
    "launch_cost": 25,
    "local_memory": 15,
    "tools": 50,
    "torch_compile": 50,
    "share_alone": 90,
    "share_beside_tenant": 75,
    "share_of_varying": 20,
    "share_of_streams": 20,
    "share_of_graphs": 12,
}
# Seconds of the command.
BUDGET = 420

if __name__ == "__main__":
    container.main("limited", {**vars(sharing), **globals()}, PARTS, BUDGET)
