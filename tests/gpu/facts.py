"""What a driver and its GPU do that no document states; sharing.py has what concerns memory that
processes share, timing.py what concerns time. See parts.py for how it runs."""

import contextlib
import ctypes
import glob
import importlib.metadata
import os
import platform
import struct
import subprocess
import time
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p

import parts
import probe
import sharing
import timing
import workload
from parts import report
from probe import MIB, Attempts, Driver, DriverError, Nvml, cost
from sharing import GIB, nvml_of_cuda, seen_by

PACKAGES = [
    "torch", "triton", "jax", "jaxlib", "cupy-cuda12x", "cupy-cuda13x", "numba", "numba-cuda",
    "cuda-bindings", "cuda-core", "tinygrad", "nvidia-ml-py",
]
# Versions of cuGetProcAddress at which a name may begin to answer another address.
VERSIONS = [
    2000, 2010, 3000, 3010, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 7050, 8000, 9000,
    9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11060, 11070, 11080, 12000,
    12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090, 13000, 13010, 13020, 13030,
]
MADV_WIPEONFORK = 18
HERE = os.path.dirname(os.path.abspath(__file__))


def first_lines(path, count=4):
    try:
        with open(path) as file:
            return file.read().splitlines()[:count]
    except OSError as error:
        return str(error)


def machine():
    report(
        python=platform.python_version(),
        kernel=platform.release(),
        libc=" ".join(platform.libc_ver()),
        processors=os.cpu_count(),
        user=os.getuid(),
        library_path=os.environ.get("LD_LIBRARY_PATH"),
        module=first_lines("/proc/driver/nvidia/version"),
        devices=sorted(glob.glob("/dev/nvidia*")),
        mounts=[line for line in first_lines("/proc/mounts", 1000) if "nvidia" in line],
        status=[
            line for line in first_lines("/proc/self/status", 100)
            if line.startswith(("NSpid", "CapEff", "Seccomp"))
        ],
        compilers=[name for name in ("cc", "gcc", "clang", "nvcc", "nvidia-smi")
                   if any(os.access(os.path.join(folder, name), os.X_OK)
                          for folder in os.environ.get("PATH", "").split(":"))],
    )
    unshare = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, timeout=20
    )
    report(mount_namespace=unshare.stderr.strip() or "allowed")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = c_void_p
    page = libc.mmap(None, c_size_t(4096), 3, 0x22, -1, 0)
    refused = libc.madvise(c_void_p(page), c_size_t(4096), MADV_WIPEONFORK)
    report(wipe_on_fork=os.strerror(ctypes.get_errno()) if refused else "allowed")
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    report(packages=found)

    nvml = nvml_of_cuda()
    report(
        driver=nvml.text("nvmlSystemGetDriverVersion"),
        nvml=nvml.text("nvmlSystemGetNVMLVersion"),
        gpu=nvml.text("nvmlDeviceGetName", nvml.device),
        compute_mode=nvml.number("nvmlDeviceGetComputeMode"),
        persistence=nvml.number("nvmlDeviceGetPersistenceMode"),
        clock_mhz=nvml.number("nvmlDeviceGetClockInfo", 1),
        most_clock_mhz=nvml.number("nvmlDeviceGetMaxClockInfo", 1),
    )
    current, pending = c_uint(), c_uint()
    code = nvml.ask("nvmlDeviceGetMigMode", nvml.device, byref(current), byref(pending))
    report(mig=current.value if code == 0 else f"error {code}")
    report(nvml_memory=nvml.memory(), nvml_processes=nvml.processes())
    driver = Driver(context=False)
    attributes = {}
    for number in range(1, 160):
        with contextlib.suppress(DriverError):
            attributes[number] = driver.attribute(number)
    report(
        cuda=driver.value(c_int, "cuDriverGetVersion"),
        uuid=driver.uuid(),
        total_memory=driver.value(c_size_t, "cuDeviceTotalMem_v2", driver.device),
        attributes=attributes,
    )
    before = mapped()
    Driver()
    report(libraries={"before_context": before, "with_context": mapped()})


def mapped():
    """The driver's libraries in this process."""
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if line.count("/") > 1}
    return sorted(path for path in paths if "nvidia" in path or "libcuda" in path)


def exported(path):
    """The functions in `.dynsym` of a 64-bit ELF file that it defines, with their addresses."""
    with open(path, "rb") as file:
        data = file.read()
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    found = {}
    for section in (one for one in sections if one[1] == 11):
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if index and info & 15 in (1, 2, 10):
                end = data.index(b"\0", strings + name)
                found[data[strings + name : end].decode()] = value
    return found


def exports():
    for library, path in probe.driver_files().items():
        found = exported(path)
        report(**{library: {"path": os.path.realpath(path), "names": sorted(found)}})


def addresses():
    path = probe.driver_files()["libcuda"]
    names = [name for name in exported(path) if name.startswith("cu")]
    driver = Driver(context=False)
    of = {name: ctypes.cast(getattr(driver.library, name), c_void_p).value for name in names}
    by_address = {}
    for name in sorted(of, key=len, reverse=True):
        by_address[of[name]] = name
    base = min(of.values()) >> 12 << 12
    bare = {strip(name) for name in names} | set(names)
    most = driver.value(c_int, "cuDriverGetVersion")
    versions = [version for version in VERSIONS if version < most] + [most]
    answers, same, other = {}, 0, []
    for name in sorted(bare):
        for flags in (0, 2):
            last, changes = None, []
            for version in versions:
                found, status = c_void_p(), c_int()
                code = driver.ask(
                    "cuGetProcAddress_v2", name.encode(), byref(found), version, c_uint64(flags),
                    byref(status),
                )
                if code or not found.value:
                    answer = None
                else:
                    answer = by_address.get(found.value) or f"+{found.value - base:#x}"
                if answer != last:
                    changes.append([version, answer])
                    last = answer
            if not last:
                continue
            if last.startswith("+"):
                other.append(name)
            else:
                same += 1
            answers[name if flags == 0 else f"{name} per thread"] = changes
    report(
        exported=len(names),
        same_as_dlsym=same,
        not_from_dlsym=other,
        one_address=len(of) - len(by_address),
        answers=answers,
    )


def strip(name):
    """A name without the suffixes that only the library has."""
    for suffix in ("_ptsz", "_ptds"):
        name = name[: -len(suffix)] if name.endswith(suffix) else name
    head, _, tail = name.rpartition("_v")
    return head if head and tail.isdigit() else name


def take_context(kind):
    """A context, and what some library adds to it."""
    if kind == "bare":
        driver = Driver()
        report(context=driver.memory())
        parts.reached("context")
        (kernel,) = driver.kernels(probe.timed(probe.spin, 10))
        report(module=driver.memory())
        parts.reached("module")
        driver.launcher(kernel)()
        driver("cuCtxSynchronize")
        report(launch=driver.memory())
        parts.reached("launch")
        second = driver.value(c_void_p, "cuCtxCreate_v2", c_uint(0), driver.device)
        report(second=bool(second.value))
        parts.reached("second")
        limits = {}
        for number in range(6):
            with contextlib.suppress(DriverError):
                limits[number] = driver.value(c_size_t, "cuCtxGetLimit", number)
        report(limits=limits)
    else:
        for step, reserved in LIBRARIES[kind]():
            report(**{step: {"reserved_mib": reserved}})
            parts.reached(step)


def context_steps(kind, environment=None):
    """MiB that the device and NVML's figure of the process gain at each step of `take_context`."""
    nvml = nvml_of_cuda()
    base = probe.settled(nvml.used)
    steps = {}
    environment = {**os.environ, **(environment or {})}
    try:
        with parts.Worker("take_context", kind, environment=environment) as worker:
            while step := worker.next_step():
                used = probe.settled(nvml.used)
                steps[step] = {
                    "device_mib": (used - base) / MIB,
                    "processes_mib": nvml.processes(),
                    "process": worker.result.get(step),
                }
                worker.send("")
            steps["limits"] = worker.result.get("limits")
    except RuntimeError as error:
        steps["error"] = str(error)
    after = probe.settled(nvml.used)
    steps["left_mib"] = (after - base) / MIB
    return steps


def contexts():
    for name, environment in [
        ("lazy", {"CUDA_MODULE_LOADING": "LAZY"}),
        ("eager", {"CUDA_MODULE_LOADING": "EAGER"}),
        ("default", {}),
    ]:
        report(**{name: context_steps("bare", environment)})


def with_torch():
    import torch

    reserved = lambda: torch.cuda.memory_reserved() / MIB
    one = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    yield "first", reserved()
    (one + 1).sum().item()
    yield "kernels", reserved()
    matrix = torch.ones(256, 256, device="cuda")
    (matrix @ matrix).sum().item()
    yield "cublas", reserved()
    image = torch.ones(1, 3, 32, 32, device="cuda")
    torch.nn.Conv2d(3, 8, 3).cuda()(image).sum().item()
    yield "cudnn", reserved()
    torch.fft.fft(matrix).abs().sum().item()
    yield "cufft", reserved()
    torch.linalg.svd(matrix)[1].sum().item()
    yield "cusolver", reserved()


def with_jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX's backend is {jax.default_backend()}")
    reserved = lambda: (jax.devices()[0].memory_stats() or {}).get("pool_bytes", 0) / MIB
    one = jnp.zeros(1).block_until_ready()
    yield "first", reserved()
    (one + 1).block_until_ready()
    yield "kernels", reserved()
    matrix = jnp.ones((256, 256))
    (matrix @ matrix).block_until_ready()
    yield "cublas", reserved()


def with_cupy():
    import cupy

    pool = cupy.get_default_memory_pool()
    reserved = lambda: pool.total_bytes() / MIB
    one = cupy.zeros(1)
    yield "first", reserved()
    (one + 1).sum().item()
    yield "kernels", reserved()
    matrix = cupy.ones((256, 256))
    (matrix @ matrix).sum().item()
    yield "cublas", reserved()


LIBRARIES = {"torch": with_torch, "jax": with_jax, "cupy": with_cupy}


def library(name):
    """The context of a library, if it is installed. It is imported in a process of its own: this
    one has no context."""
    parts.needs(name)
    report(**context_steps(name))


def torch():
    library("torch")


def jax():
    library("jax")


def cupy():
    library("cupy")


def blocks():
    driver = Driver()
    sizes = [1, 4096, 64 << 10, MIB - 1, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB,
             4 * MIB + 1, 10 * MIB + 1, 20 * MIB, 33 * MIB, 64 * MIB + 1]
    kib = lambda before: (before - driver.memory()[0]) / 1024
    taken = {}
    for size in sizes:
        before = driver.memory()[0]
        first = driver.allocate(size)
        one = kib(before)
        second = driver.allocate(size)
        taken[size] = {"first_kib": one, "second_kib": kib(before) - one}
        driver.free(second)
        driver.free(first)
        taken[size]["left_kib"] = kib(before)
    report(taken_of_free=taken)
    before, small = driver.memory()[0], []
    while driver.memory()[0] == before and len(small) < 10:
        small.append(driver.allocate(1))
    inside = driver.memory()[0]
    while driver.memory()[0] == inside and len(small) < 10000:
        small.append(driver.allocate(1))
    report(
        small={
            "block_kib": (before - inside) / 1024,
            "allocations": len(small),
            "next_block_kib": (inside - driver.memory()[0]) / 1024,
            "distance": sorted({b - a for a, b in zip(small, small[1:])})[:4],
        }
    )
    for address in small:
        driver.free(address)
    pitches = {}
    for width in (1, 100, 512, 1000, 4097):
        address, pitch = c_uint64(), c_size_t()
        driver("cuMemAllocPitch_v2", byref(address), byref(pitch), c_size_t(width), c_size_t(16), 4)
        pitches[width] = pitch.value
        driver("cuMemFree_v2", address)
    report(pitches=pitches)
    # CUmemAllocationProp: pinned memory on device 0, without a handle type.
    words = (c_uint * 8)(1, 0, 1, 0)
    report(
        granularity=[
            driver.value(c_size_t, "cuMemGetAllocationGranularity", words, flag) for flag in (0, 1)
        ]
    )
    stream = driver.stream()
    pool = driver.value(c_void_p, "cuDeviceGetDefaultMemPool", driver.device)
    pools = []
    for size in (1, 3 * MIB, 40 * MIB, 100 * MIB):
        before = driver.memory()[0]
        address = c_uint64()
        driver("cuMemAllocAsync", byref(address), c_size_t(size), stream)
        driver("cuStreamSynchronize", stream)
        reserved = c_uint64()
        # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        driver("cuMemPoolGetAttribute", pool, 5, byref(reserved))
        taken = kib(before)
        driver("cuMemFreeAsync", address, stream)
        driver("cuStreamSynchronize", stream)
        pools.append({
            "size": size, "reserved": reserved.value, "taken_kib": taken, "left_kib": kib(before),
        })
    report(pools=pools)


def whole():
    """All memory that one process can get, beside what NVML calls total and reserved."""
    nvml = nvml_of_cuda()
    before = nvml.memory()
    driver = Driver()
    free, total = driver.memory()
    context = nvml.memory()
    got, taken = {}, []
    for size in (GIB, 64 * MIB, 2 * MIB, 64 << 10):
        count = 0
        while count < 4096 and (address := driver.try_allocate(size)) is not None:
            taken.append(address)
            count += 1
        got[size] = count
    full = nvml.memory()
    report(
        total=total,
        free_at_first=free,
        got_bytes=sum(size * count for size, count in got.items()),
        got={str(size): count for size, count in got.items()},
        free_at_last=driver.memory()[0],
        nvml_before=before,
        nvml_with_context=context,
        nvml_full=full,
        nvml_process_mib=nvml.processes(),
        could_not_get_mib=(before["total"] - before["reserved"] - sum(
            size * count for size, count in got.items())) / MIB,
    )


def local_memory():
    driver = Driver()
    nvml = Nvml(driver.uuid())
    # A context has stacks of 1 KiB at first.
    sizes = [0, 512, 800, 1008, 1040, 2048, 4096, 16384, 65536]
    described = [probe.timed(probe.spin, 1)] + [
        (probe.local, f"frame_us_10_local_{size}", size) for size in sizes[1:]
    ]
    kernels = driver.kernels(*described)
    report(
        multiprocessors=driver.attribute(16),
        threads_of_multiprocessor=driver.attribute(39),
        default_stack=driver.value(c_size_t, "cuCtxGetLimit", 0),
        after_module=driver.memory()[0],
    )
    out = driver.zeroed(2)
    free, used = driver.memory()[0], nvml.used()
    for step, size, kernel in [*zip(range(99), sizes, kernels), ("last", 0, kernels[0])]:
        value = c_int()
        driver("cuFuncGetAttribute", byref(value), 3, kernel)
        before, nvml_before = driver.memory()[0], nvml.used()
        driver.launcher(kernel, out, 100)()
        driver("cuCtxSynchronize")
        report(**{f"step_{step}": {
            "frame": size,
            "attribute": value.value,
            "launch_takes_mib": (before - driver.memory()[0]) / MIB,
            "nvml_takes_mib": (nvml.used() - nvml_before) / MIB,
            "taken_in_all_mib": (free - driver.memory()[0]) / MIB,
        }})
    report(nvml_in_all_mib=(nvml.used() - used) / MIB)


def context_limits():
    """What stacks take that a program sets, and how long cuCtxSetLimit takes with work pending."""
    driver = Driver()
    short, long = driver.kernels(probe.timed(probe.spin, 10), probe.timed(probe.spin, 300_000))
    stream = driver.stream()
    run, run_long = (driver.launcher(kernel, stream=stream) for kernel in (short, long))
    run()
    driver("cuStreamSynchronize", stream)
    tried, free, stacks = Attempts(driver), driver.memory()[0], {}
    for size in (512, 1024, 2048, 8192, 1024):
        tried(f"stack_{size}", "cuCtxSetLimit", 0, c_size_t(size))
        after_set = driver.memory()[0]
        run()
        driver("cuStreamSynchronize", stream)
        stacks[f"{len(stacks)}: {size}"] = {
            "set_takes_mib": (free - after_set) / MIB,
            "after_launch_mib": (free - driver.memory()[0]) / MIB,
        }
    report(stacks=stacks)
    took, size = {}, 1024
    # CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE
    for name, number, base in (("stack", 0, 2048), ("printf", 1, 4 * MIB), ("heap", 2, 16 * MIB)):
        for state in ("idle", "kernel_runs"):
            size = base if state == "idle" else 2 * base
            if state != "idle":
                run_long()
            started = time.perf_counter()
            tried(f"{name}_{state}", "cuCtxSetLimit", number, c_size_t(size))
            took[f"{name}_{state}_ms"] = round((time.perf_counter() - started) * 1000, 3)
            driver("cuStreamSynchronize", stream)
    report(took=took, codes=tried.codes)


def green():
    """Whether events work in a green context, what its streams answer, and what it takes."""
    driver = Driver()
    tried, before = Attempts(driver), driver.memory()[0]
    # CUdevResource has 144 bytes in 12.4; later ones may have more.
    whole, group, rest = ((c_char * 1024)() for _ in range(3))
    groups, description, handle, context = c_uint(1), c_void_p(), c_void_p(), c_void_p()
    stream, own = c_void_p(), driver.event()
    (kernel,) = driver.kernels(probe.timed(probe.spin, 1000))
    made = (
        # CU_DEV_RESOURCE_TYPE_SM
        tried("resource", "cuDeviceGetDevResource", driver.device, whole, 1)
        and tried("split", "cuDevSmResourceSplitByCount", group, byref(groups), whole, rest, 0, 16)
        and tried("describe", "cuDevResourceGenerateDesc", byref(description), group, 1)
        and tried("create", "cuGreenCtxCreate", byref(handle), description, driver.device, 1)
        and tried("context", "cuCtxFromGreenCtx", byref(context), handle)
        and tried("current", "cuCtxSetCurrent", context)
        and tried("stream", "cuGreenCtxStreamCreate", byref(stream), handle, 1, 0)
    )
    report(codes=tried.codes)
    if not made:
        return
    report(takes_mib=(before - driver.memory()[0]) / MIB)
    start, end = driver.event(), driver.event()
    launch = driver.launcher(kernel, stream=stream)
    tried("record_start", "cuEventRecord", start, stream)
    try:
        launch()
        tried.codes["launch_of_primary_context"] = 0
    except DriverError as error:
        tried.codes["launch_of_primary_context"] = error.code
    tried("record_end", "cuEventRecord", end, stream)
    tried("record_event_of_primary_context", "cuEventRecord", own, stream)
    tried("wait", "cuStreamSynchronize", stream)
    tried("query", "cuEventQuery", end)
    milliseconds = ctypes.c_float()
    if tried("elapsed", "cuEventElapsedTime", byref(milliseconds), start, end):
        report(elapsed_ms=milliseconds.value)
    tried("record_context", "cuGreenCtxRecordEvent", handle, end)
    tried("record_as_context", "cuCtxRecordEvent", context, end)
    found, device, number = c_void_p(), c_int(), c_uint64()
    tried("stream_context", "cuStreamGetCtx", stream, byref(found))
    tried("context_device", "cuCtxGetDevice", byref(device))
    tried("context_id", "cuCtxGetId", context, byref(number))
    report(stream_has_this_context=found.value == context.value, codes=tried.codes)


def graphs():
    """Device memory of graphs, step by step, and what a memory node of a graph leaves reserved."""
    driver = Driver()
    (kernel,) = driver.kernels(probe.timed(probe.spin, 2))
    stream = driver.stream()
    run = driver.launcher(kernel, stream=stream)
    run()
    driver("cuStreamSynchronize", stream)
    free = driver.memory()[0]
    taken = lambda: (free - driver.memory()[0]) / MIB
    for size in (1, 100, 2000):
        ready, steps = workload.captured(driver, run, stream, size), {}
        steps["instantiated"] = taken()
        for name, call in [("uploaded", "cuGraphUpload"), ("launched", "cuGraphLaunch")]:
            driver(call, ready, stream)
            driver("cuStreamSynchronize", stream)
            steps[name] = taken()
        driver("cuGraphExecDestroy", ready)
        steps["destroyed"] = taken()
        report(**{f"graph_of_{size}_mib": steps})

    def allocate():
        address = driver.value(c_uint64, "cuMemAllocAsync", c_size_t(64 * MIB), stream)
        driver("cuMemFreeAsync", c_uint64(address), stream)

    steps, reserved = {}, c_uint64()
    ready = workload.captured(driver, allocate, stream, 1)
    steps["instantiated"] = taken()
    driver("cuGraphLaunch", ready, stream)
    driver("cuStreamSynchronize", stream)
    steps["launched"] = taken()
    # CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    code = driver.ask("cuDeviceGetGraphMemAttribute", driver.device, 2, byref(reserved))
    steps["reserved"] = f"error {code}" if code else reserved.value / MIB
    driver("cuGraphExecDestroy", ready)
    steps["destroyed"] = taken()
    driver("cuDeviceGraphMemTrim", driver.device)
    steps["trimmed"] = taken()
    report(memory_node_mib=steps)


def driver_program():
    """The calls of the node agent and the monitor, by their own code, beside three busy processes:
    what NVML answers to them, and what it refuses."""
    program = os.path.join(HERE, "nvml-facts")
    if not os.path.isfile(program):
        raise parts.Skipped("nvml-facts is not beside the script; expected: a folder of pack.sh")
    with timing.busy_processes(3, timing.speed()) as workers:
        pids = sorted(worker.result["pid"] for worker in workers)
        report(pids=pids)
        with parts.Worker("nvml-facts", words=[program]) as worker:
            try:
                worker.end(25)
            finally:
                report(**worker.result)
        listed = worker.result.get("processes", {})
        report(python_sees=nvml_of_cuda().processes())
    # Wrong ids from the second process on are those of a driver whose records have another size.
    found = [one["pid"] for each in listed.values() if isinstance(each, list) for one in each]
    report(lists_all_processes=set(pids) <= set(found))


def managed():
    mib = 256
    driver = Driver()
    nvml = Nvml(driver.uuid())
    seen = lambda: {**seen_by(nvml), "free_mib": driver.memory()[0] / MIB}
    steps = {"context": seen()}
    # CU_MEM_ATTACH_GLOBAL
    address = driver.value(c_uint64, "cuMemAllocManaged", c_size_t(mib * MIB), 1)
    steps["allocated"] = seen()
    ctypes.memset(address, 1, mib * MIB)
    steps["written_by_host"] = seen()
    driver("cuMemPrefetchAsync", c_uint64(address), c_size_t(mib * MIB), driver.device, None)
    driver("cuCtxSynchronize")
    steps["on_device"] = seen()
    driver.free(address)
    steps["freed"] = seen()
    plain = driver.allocate(mib * MIB)
    steps["as_much_of_cuMemAlloc"] = seen()
    driver.free(plain)
    report(mib=mib, steps=steps)


def calls():
    driver = Driver()
    library = driver.library
    stream, ready, late = driver.stream(), driver.event(), driver.event()
    start, end = driver.event(), driver.event()
    kernels = driver.kernels(probe.timed(probe.spin, 3), probe.timed(probe.spin, 50000))
    launch, launch_long = (driver.launcher(kernel, stream=stream) for kernel in kernels)
    # `ffs` does nothing: what a call from Python costs with one, two and three pointers.
    nothing = ctypes.CDLL(None).ffs
    one = cost(lambda: nothing(ready))
    two = cost(lambda: nothing(ready, ready))
    three = cost(lambda: nothing(ready, ready, ready))
    five = cost(lambda: nothing(ready, ready, ready, ready, ready))
    status, mode, device, context = c_int(), c_int(2), c_int(), c_void_p()
    pool = driver.value(c_void_p, "cuDeviceGetDefaultMemPool", driver.device)
    found, state, reserved, zero = c_void_p(), c_int(), c_uint64(), c_uint64(0)
    free, total, milliseconds = c_size_t(), c_size_t(), ctypes.c_float()
    report(python_ns=[one, two, three], note="a call's cost is without what Python takes for it")
    driver("cuEventRecord", start, stream)
    launch()
    for event in (end, ready):
        driver("cuEventRecord", event, stream)
    driver("cuStreamSynchronize", stream)
    exchange = library.cuThreadExchangeStreamCaptureMode
    idle = {
        "cuEventQuery_ready": cost(lambda: library.cuEventQuery(ready), one),
        "cuEventElapsedTime": cost(
            lambda: library.cuEventElapsedTime(byref(milliseconds), start, end), three),
        "cuStreamQuery_idle": cost(lambda: library.cuStreamQuery(stream), one),
        "cuStreamIsCapturing": cost(
            lambda: library.cuStreamIsCapturing(stream, byref(status)), two),
        "cuThreadExchangeStreamCaptureMode": cost(lambda: exchange(byref(mode)), one),
        "cuCtxGetCurrent": cost(lambda: library.cuCtxGetCurrent(byref(context)), one),
        "cuCtxGetDevice": cost(lambda: library.cuCtxGetDevice(byref(device)), one),
        "cuMemGetInfo_v2": cost(
            lambda: library.cuMemGetInfo_v2(byref(free), byref(total)), two, 200),
        "cuEventRecord_and_cuStreamSynchronize": cost(
            lambda: (library.cuEventRecord(late, stream), library.cuStreamSynchronize(stream)),
            one + two, 200),
        "cuStreamSynchronize_idle": cost(lambda: library.cuStreamSynchronize(stream), one),
    }
    report(idle_ns=idle)
    look_up = library.cuGetProcAddress_v2
    report(
        unhooked_ns={
            **{
                f"cuGetProcAddress_of_{name}": cost(
                    lambda: look_up(text, byref(found), 12000, zero, byref(state)), five, 200)
                for name, text in probe.PROCEDURES.items()
            },
            "cuStreamGetCtx": cost(lambda: library.cuStreamGetCtx(stream, byref(context)), two),
            "cuMemPoolGetAttribute": cost(
                lambda: library.cuMemPoolGetAttribute(pool, 5, byref(reserved)), three),
            "cuFuncGetAttribute": cost(
                lambda: library.cuFuncGetAttribute(byref(status), 3, kernels[0]), three),
            "cuCtxGetLimit": cost(lambda: library.cuCtxGetLimit(byref(reserved), 0), two),
        }
    )
    # While a kernel runs, the stream's queue takes about a thousand entries.
    busy = {}
    for name, work, less in [
        ("cuEventRecord", lambda: library.cuEventRecord(late, stream), two),
        ("cuEventQuery_not_ready", lambda: library.cuEventQuery(late), one),
        ("cuStreamQuery_busy", lambda: library.cuStreamQuery(stream), one),
        ("cuLaunchKernel", launch, three),
    ]:
        launch_long()
        driver("cuEventRecord", late, stream)
        busy[name] = cost(work, less, 50)
        driver("cuStreamSynchronize", stream)
    report(busy_ns=busy)
    nvml = Nvml(driver.uuid())
    report(
        nvml_us={
            "memory": cost(nvml.memory, 0, 20) / 1000,
            "processes": cost(nvml.processes, 0, 20) / 1000,
            "legacy_utilization": cost(lambda: nvml.legacy_utilization(0), 0, 20) / 1000,
            "utilization": cost(lambda: nvml.utilization(0), 0, 20) / 1000,
        }
    )


# Seconds. Those of all are more than the budget, of which the parts took a third on the simulator:
# one that ends early leaves its time to the last ones, which matter least.
PARTS = {
    "machine": 25,
    "driver_program": 30,
    "contexts": 35,
    "local_memory": 15,
    "context_limits": 10,
    "calls": 15,
    "descriptors": 25,
    "ipc": 15,
    "shared_pools": 12,
    "fabric": 8,
    "unmapping": 10,
    "killed": 40,
    "green": 8,
    "graphs": 10,
    "managed": 12,
    "clock": 8,
    "utilisation": 35,
    "streams": 10,
    "events_alone": 25,
    "slices_of_2": 10,
    "slices_of_4": 12,
    "torch": 40,
    "jax": 40,
    "blocks": 10,
    "throughput": 40,
    "addresses": 15,
    "exports": 8,
    "whole": 20,
    "marks": 6,
    "copies": 20,
    "cupy": 25,
    "events_beside_1": 20,
    "events_beside_2": 25,
    "events_beside_4": 40,
}
# Seconds of the command.
BUDGET = 530

if __name__ == "__main__":
    functions = {**vars(timing), **vars(sharing), **globals()}
    parts.main("facts", functions, PARTS, BUDGET)
