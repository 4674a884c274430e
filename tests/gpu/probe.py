"""The CUDA driver and NVML through ctypes, and the kernels that the scripts launch.

A kernel's name states how long it runs on the simulated driver, which does not execute PTX:
`spin_us_500` runs 500 microseconds there. On a GPU its text is executed.
"""

import ctypes
import json
import os
import statistics
import time
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from parts import Unfit, scaled

MIB = 1 << 20
# The variable with the MiB that the driver shows to a limited process.
SHARE = "ALIQUOT_LIMITED_SHARE"
# CUresult
NOT_READY = 600
OUT_OF_MEMORY = 2
# NVML_VALUE_NOT_AVAILABLE
NOT_AVAILABLE = (1 << 64) - 1

HEAD = ".version 6.3\n.target sm_70\n.address_size 64\n"


def spin(name, nanoseconds):
    """Runs until `%globaltimer` has advanced; writes its first and last reading."""
    return f""".visible .entry {name}(.param .u64 {name}_out, .param .u64 {name}_count)
{{
    .reg .u64 %out, %start, %now, %past;
    .reg .pred %more, %none;
    ld.param.u64 %out, [{name}_out];
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %past, %now, %start;
    setp.lt.u64 %more, %past, {nanoseconds};
    @%more bra AGAIN;
    setp.eq.u64 %none, %out, 0;
    @%none bra END;
    cvta.to.global.u64 %out, %out;
    st.global.u64 [%out], %start;
    st.global.u64 [%out+8], %now;
END:
    ret;
}}
"""


def work(name, _):
    """A fixed amount of work, `count` iterations of it, however often it is interrupted; writes its
    first and last reading of `%globaltimer`."""
    step = "    fma.rn.f32 %value, %value, 0f3F7FBE77, 0f3F000000;\n" * 16
    return f""".visible .entry {name}(.param .u64 {name}_out, .param .u64 {name}_count)
{{
    .reg .u64 %out, %count, %done, %start, %now;
    .reg .f32 %value;
    .reg .pred %more, %none;
    ld.param.u64 %out, [{name}_out];
    ld.param.u64 %count, [{name}_count];
    mov.u64 %start, %globaltimer;
    mov.u64 %done, 0;
    mov.f32 %value, 0f3F800000;
AGAIN:
{step}    add.u64 %done, %done, 1;
    setp.lt.u64 %more, %done, %count;
    @%more bra AGAIN;
    mov.u64 %now, %globaltimer;
    setp.eq.u64 %none, %out, 0;
    @%none bra END;
    cvta.to.global.u64 %out, %out;
    st.global.u64 [%out], %start;
    st.global.u64 [%out+8], %now;
    st.global.f32 [%out+16], %value;
END:
    ret;
}}
"""


def runs(name, nanoseconds):
    """Writes when it ran: the number of runs at `out`, then first and last reading of each. A run
    ends where two readings of `%globaltimer` are more than 10 us apart; `count` is the most."""
    return f""".visible .entry {name}(.param .u64 {name}_out, .param .u64 {name}_count)
{{
    .reg .u64 %out, %at, %most, %found, %start, %first, %last, %now, %past;
    .reg .pred %more, %same, %full;
    ld.param.u64 %out, [{name}_out];
    ld.param.u64 %most, [{name}_count];
    cvta.to.global.u64 %out, %out;
    add.u64 %at, %out, 8;
    mov.u64 %found, 0;
    mov.u64 %start, %globaltimer;
    mov.u64 %first, %start;
    mov.u64 %last, %start;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %past, %now, %last;
    setp.lt.u64 %same, %past, 10000;
    @%same bra NEXT;
    setp.ge.u64 %full, %found, %most;
    @%full bra NEXT;
    st.global.u64 [%at], %first;
    st.global.u64 [%at+8], %last;
    add.u64 %at, %at, 16;
    add.u64 %found, %found, 1;
    mov.u64 %first, %now;
NEXT:
    mov.u64 %last, %now;
    sub.u64 %past, %now, %start;
    setp.lt.u64 %more, %past, {nanoseconds};
    @%more bra AGAIN;
    st.global.u64 [%at], %first;
    st.global.u64 [%at+8], %last;
    add.u64 %found, %found, 1;
    st.global.u64 [%out], %found;
    ret;
}}
"""


def steps(name, nanoseconds):
    """Writes how `%globaltimer` advances: changes, least and largest step, nanoseconds in all, and
    the multiprocessor's cycles meanwhile."""
    return f""".visible .entry {name}(.param .u64 {name}_out, .param .u64 {name}_count)
{{
    .reg .u64 %out, %start, %last, %now, %step, %changes, %least, %most, %past, %cycles, %end;
    .reg .pred %more, %same;
    ld.param.u64 %out, [{name}_out];
    cvta.to.global.u64 %out, %out;
    mov.u64 %changes, 0;
    mov.u64 %most, 0;
    mov.u64 %least, 1000000000;
    mov.u64 %cycles, %clock64;
    mov.u64 %start, %globaltimer;
    mov.u64 %last, %start;
AGAIN:
    mov.u64 %now, %globaltimer;
    setp.eq.u64 %same, %now, %last;
    @%same bra NEXT;
    sub.u64 %step, %now, %last;
    min.u64 %least, %least, %step;
    max.u64 %most, %most, %step;
    add.u64 %changes, %changes, 1;
    mov.u64 %last, %now;
NEXT:
    sub.u64 %past, %now, %start;
    setp.lt.u64 %more, %past, {nanoseconds};
    @%more bra AGAIN;
    mov.u64 %end, %clock64;
    sub.u64 %cycles, %end, %cycles;
    st.global.u64 [%out], %changes;
    st.global.u64 [%out+8], %least;
    st.global.u64 [%out+16], %most;
    st.global.u64 [%out+24], %past;
    st.global.u64 [%out+32], %cycles;
    ret;
}}
"""


def local(name, size):
    """Uses `size` bytes of local memory in each thread, at places that the compiler cannot know."""
    return f""".visible .entry {name}(.param .u64 {name}_out, .param .u64 {name}_count)
{{
    .local .align 4 .b8 {name}_frame[{size}];
    .reg .u64 %out, %count, %done, %frame, %at;
    .reg .u32 %value, %place;
    .reg .pred %more, %none;
    ld.param.u64 %out, [{name}_out];
    ld.param.u64 %count, [{name}_count];
    mov.u64 %frame, {name}_frame;
    mov.u64 %done, 0;
    mov.u32 %value, %tid.x;
AGAIN:
    mad.lo.u32 %value, %value, 1664525, 1013904223;
    rem.u32 %place, %value, {size // 4};
    mul.wide.u32 %at, %place, 4;
    add.u64 %at, %at, %frame;
    st.local.u32 [%at], %value;
    shr.u32 %place, %value, 7;
    rem.u32 %place, %place, {size // 4};
    mul.wide.u32 %at, %place, 4;
    add.u64 %at, %at, %frame;
    ld.local.u32 %place, [%at];
    xor.b32 %value, %value, %place;
    add.u64 %done, %done, 1;
    setp.lt.u64 %more, %done, %count;
    @%more bra AGAIN;
    setp.eq.u64 %none, %out, 0;
    @%none bra END;
    cvta.to.global.u64 %out, %out;
    st.global.u32 [%out], %value;
END:
    ret;
}}
"""


def ptx(*kernels):
    """A module of kernels, each a function of this file, a name and its number."""
    return HEAD + "".join(text(name, number) for text, name, number in kernels)


def timed(text, microseconds):
    """A kernel of so many microseconds, with its name."""
    name = f"{text.__name__}_us_{microseconds}"
    return text, name, microseconds * 1000


class DriverError(Exception):
    """A call of the driver failed."""

    def __init__(self, name, code):
        super().__init__(f"{name}: {code}")
        self.code = code


class Driver:
    """The CUDA driver, with the primary context of its first device unless `context` is false."""

    def __init__(self, context=True):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", c_uint(0))
        self.device = c_int()
        self("cuDeviceGet", byref(self.device), 0)
        # A tenant without its limit could take the whole GPU.
        if share := os.environ.get(SHARE):
            total = self.value(c_size_t, "cuDeviceTotalMem_v2", self.device)
            if total != int(share) * MIB:
                raise Unfit(f"this process sees {total / MIB} MiB; expected: its share of {share}")
        if context:
            handle = c_void_p()
            self("cuDevicePrimaryCtxRetain", byref(handle), self.device)
            self("cuCtxSetCurrent", handle)

    def ask(self, name, *arguments):
        """The code of a call."""
        return getattr(self.library, name)(*arguments)

    def __call__(self, name, *arguments):
        if code := self.ask(name, *arguments):
            raise DriverError(name, code)

    def value(self, kind, name, *arguments):
        """What a call writes to its first argument."""
        out = kind()
        self(name, byref(out), *arguments)
        return out if kind is c_void_p else out.value

    def uuid(self):
        found = (c_char * 16)()
        self("cuDeviceGetUuid", found, self.device)
        digits = bytes(found).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return "GPU-" + "-".join(parts)

    def attribute(self, number):
        return self.value(c_int, "cuDeviceGetAttribute", number, self.device)

    def memory(self):
        """Free and total bytes."""
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size):
        return self.value(c_uint64, "cuMemAlloc_v2", c_size_t(size))

    def try_allocate(self, size):
        """An address, or None where memory is out."""
        try:
            return self.allocate(size)
        except DriverError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            return None

    def free(self, address):
        self("cuMemFree_v2", c_uint64(address))

    def kernels(self, *kernels):
        """Loads kernels; their handles in that order."""
        self.text = ptx(*kernels).encode()
        module = self.value(c_void_p, "cuModuleLoadData", self.text)
        return [
            self.value(c_void_p, "cuModuleGetFunction", module, name.encode())
            for _, name, _ in kernels
        ]

    def launcher(self, kernel, out=0, count=0, stream=None):
        """A function that launches the kernel, with everything prepared."""
        values = (c_uint64 * 2)(out, count)
        places = (c_void_p * 2)(*(ctypes.addressof(values) + 8 * i for i in range(2)))
        words = [c_uint(1)] * 6 + [c_uint(0), stream or c_void_p(), places, c_void_p()]
        launch = self.library.cuLaunchKernel

        def run():
            if code := launch(kernel, *words):
                raise DriverError("cuLaunchKernel", code)

        # The driver reads them at each launch.
        run.values = values
        return run

    def stream(self):
        return self.value(c_void_p, "cuStreamCreate", 1)

    def event(self):
        return self.value(c_void_p, "cuEventCreate", 0)

    def elapsed(self, start, end):
        """Microseconds between two events."""
        time = c_float()
        self("cuEventElapsedTime", byref(time), start, end)
        return time.value * 1000

    def timed(self, work, stream, times=1):
        """Microseconds of each of `times` runs of some work, by two events around all."""
        start, end = self.event(), self.event()
        self("cuEventRecord", start, stream)
        for _ in range(times):
            work()
        self("cuEventRecord", end, stream)
        self("cuStreamSynchronize", stream)
        return self.elapsed(start, end) / times

    def numbers(self, address, count):
        """64-bit numbers from the device; None where nothing was written, as on the simulator."""
        found = (c_uint64 * count)()
        self("cuMemcpyDtoH_v2", found, c_uint64(address), c_size_t(8 * count))
        return list(found) if any(found) else None

    def zeroed(self, count):
        """Memory for 64-bit numbers."""
        address = self.allocate(8 * count)
        self("cuMemsetD8_v2", c_uint64(address), ctypes.c_ubyte(0), c_size_t(8 * count))
        return address


class Attempts:
    """Calls that a driver may refuse, or not have: the code of each is a fact."""

    def __init__(self, driver):
        self.driver, self.codes = driver, {}

    def __call__(self, label, name, *arguments):
        """Whether the call succeeded."""
        try:
            self.codes[label] = self.driver.ask(name, *arguments)
        except AttributeError:
            self.codes[label] = "not exported"
        return self.codes[label] == 0


class _MemoryV2(ctypes.Structure):
    _fields_ = [("version", c_uint)] + [
        (name, c_uint64) for name in ("total", "reserved", "free", "used")
    ]


class _Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("used", c_uint64), ("gpu", c_uint), ("compute", c_uint)]


class _Sample(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("at", c_uint64)] + [
        (name, c_uint) for name in ("sm", "memory", "encoder", "decoder")
    ]


class _Info(ctypes.Structure):
    _fields_ = [("at", c_uint64), ("pid", c_uint)] + [
        (name, c_uint) for name in ("sm", "memory", "encoder", "decoder", "jpeg", "optical")
    ]


class _Infos(ctypes.Structure):
    _fields_ = [
        ("version", c_uint),
        ("count", c_uint),
        ("since", c_uint64),
        ("list", ctypes.POINTER(_Info)),
    ]


class Nvml:
    """NVML's answers about the first device of CUDA. It creates no context."""

    def __init__(self, uuid):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self("nvmlInit_v2")
        self.device = c_void_p()
        self("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(self.device))

    def ask(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def __call__(self, name, *arguments):
        if code := self.ask(name, *arguments):
            raise DriverError(name, code)

    def number(self, name, *arguments):
        """A number of the device, or the code of the error as text."""
        found = c_uint()
        code = self.ask(name, self.device, *arguments, byref(found))
        return found.value if code == 0 else f"error {code}"

    def text(self, name, *arguments):
        found = ctypes.create_string_buffer(96)
        code = self.ask(name, *arguments, found, c_uint(96))
        return found.value.decode() if code == 0 else f"error {code}"

    def memory(self):
        """Total, reserved, free and used bytes."""
        found = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        self("nvmlDeviceGetMemoryInfo_v2", self.device, byref(found))
        return {name: getattr(found, name) for name in ("total", "reserved", "free", "used")}

    def used(self):
        return self.memory()["used"]

    def processes(self):
        """MiB by process id, None where not available; the code of the error as text."""
        count, found = c_uint(64), (_Process * 64)()
        code = self.ask(
            "nvmlDeviceGetComputeRunningProcesses_v3", self.device, byref(count), found
        )
        if code:
            return f"error {code}"
        listed = found[: count.value]
        return {
            one.pid: None if one.used == NOT_AVAILABLE else one.used // MIB for one in listed
        }

    def legacy_utilization(self, since):
        """The code and the samples of nvmlDeviceGetProcessUtilization."""
        count, found = c_uint(256), (_Sample * 256)()
        code = self.ask(
            "nvmlDeviceGetProcessUtilization", self.device, found, byref(count), c_uint64(since)
        )
        return code, _samples(found[: count.value] if code == 0 else [])

    def utilization(self, since):
        """The same of nvmlDeviceGetProcessesUtilizationInfo."""
        found = (_Info * 256)()
        infos = _Infos(ctypes.sizeof(_Infos) | 1 << 24, 256, since, found)
        code = self.ask("nvmlDeviceGetProcessesUtilizationInfo", self.device, byref(infos))
        return code, _samples(found[: infos.count] if code == 0 else [])


def _samples(found):
    return [{"pid": one.pid, "at_us": one.at, "sm": one.sm, "memory": one.memory} for one in found]


def driver_files():
    """The files of the driver, as the script found them."""
    return json.loads(os.environ["ALIQUOT_PARTS_DRIVER"])


def summary(values, digits=2):
    """Least, median, mean, 90th percentile and largest of some numbers."""
    if not values:
        return None
    ordered = sorted(values)
    figures = {
        "n": len(ordered),
        "least": ordered[0],
        "median": statistics.median(ordered),
        "mean": statistics.fmean(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "most": ordered[-1],
    }
    return {name: round(value, digits) for name, value in figures.items()}


ABSENT = "not measured: the kernel wrote nothing"


# Names that cuGetProcAddress is asked for: one that the limiter replaces, one that it does not, and
# one that no driver has.
PROCEDURES = {"hooked": b"cuMemAlloc", "unhooked": b"cuStreamGetPriority", "absent": b"cuNoSuch"}


def cost(work, baseline=0.0, iterations=None):
    """Nanoseconds of a call: the least mean of some batches, less what Python takes."""
    iterations = iterations or scaled(2000, 100)
    best = None
    for _ in range(7):
        start = time.perf_counter_ns()
        for _ in range(iterations):
            work()
        took = (time.perf_counter_ns() - start) / iterations
        best = took if best is None else min(best, took)
    return round(best - baseline, 1)


def settled(read, seconds=3.0):
    """A figure after it has been the same for three readings."""
    end, last, same = time.monotonic() + seconds, None, 0
    while same < 3 and time.monotonic() < end:
        found = read()
        same, last = (same + 1 if found == last else 0), found
        time.sleep(0.05)
    return last
