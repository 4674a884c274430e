"""A client of the CUDA driver for limiter.sh. It prints one line `name=value ...` for its command.

    memory                  free memory, and whether exactly that much can be allocated
    hold                    a context until standard input ends
    busy KERNEL SECONDS     the part of the time for which KERNEL ran, launched one by one
    graph KERNEL SECONDS    the same, ten of it in a graph
    rate KERNEL SECONDS     launches in a second
    torch over MIB          PyTorch's answer to MIB more than is free
    torch gemm SECONDS      products of two matrices in a second

KERNEL is k_us_N: it runs for N microseconds, by the GPU's own clock. (In the simulator the name
sets the duration, which is how this file is tested there.)
"""

import ctypes
import sys
import time

MIB = 1 << 20
WARM_UP = 2.0
KERNELS = [10, 100, 1000, 5000, 20000]
PTX = """.version 6.3
.target sm_70
.address_size 64
""" + "".join(
    f"""
.visible .entry k_us_{micros}()
{{
    .reg .u64 %start, %now;
    .reg .pred %more;
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, {micros * 1000};
    @%more bra AGAIN;
    ret;
}}
"""
    for micros in KERNELS
)


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def ask(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def __call__(self, name, *arguments):
        if code := self.ask(name, *arguments):
            sys.exit(f"{name}: {code}")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        return self.ask("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))

    def kernel(self, name):
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), PTX.encode())
        self("cuModuleGetFunction", ctypes.byref(kernel), module, name.encode())
        return kernel

    def launch(self, kernel, stream):
        ones = [ctypes.c_uint(1)] * 6
        self("cuLaunchKernel", kernel, *ones, ctypes.c_uint(0), stream, None, None)


def memory():
    driver = Driver()
    free, total = driver.free()
    more = driver.allocate(free + 2 * MIB)
    whole = driver.allocate(free)
    after = driver.allocate(2 * MIB)
    print(f"free={free // MIB} total={total // MIB} more={more} whole={whole} after={after}")


def hold():
    Driver()
    print("ready=1", flush=True)
    sys.stdin.read()


def worked(driver, stream, work, seconds):
    """How often `work` was done in how long, after a while in which its cost is learnt."""

    def some(until):
        count = 0
        while time.monotonic() < until:
            for _ in range(4):
                work()
                count += 1
            driver("cuStreamSynchronize", stream)
        return count

    some(time.monotonic() + WARM_UP)
    start = time.monotonic()
    count = some(start + seconds)
    return count, time.monotonic() - start


def stream_of(driver):
    stream = ctypes.c_void_p()
    driver("cuStreamCreate", ctypes.byref(stream), 1)
    return stream


def micros_of(kernel):
    return int(kernel.rsplit("_", 1)[1])


def busy(name, seconds, in_graph=False):
    driver = Driver()
    kernel, stream = driver.kernel(name), stream_of(driver)
    each = 1
    work = lambda: driver.launch(kernel, stream)
    if in_graph:
        each = 10
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        driver("cuStreamBeginCapture_v2", stream, 0)
        for _ in range(each):
            driver.launch(kernel, stream)
        driver("cuStreamEndCapture", stream, ctypes.byref(graph))
        zero = ctypes.c_uint64(0)
        driver("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, zero)
        work = lambda: driver("cuGraphLaunch", ready, stream)
    count, took = worked(driver, stream, work, float(seconds))
    print(f"busy={count * each * micros_of(name) / took / 1e4:.1f}")


def rate(name, seconds):
    driver = Driver()
    kernel, stream = driver.kernel(name), stream_of(driver)
    count, took = worked(driver, stream, lambda: driver.launch(kernel, stream), float(seconds))
    print(f"rate={count / took:.1f}")


def torch_over(mib):
    import torch

    free, _ = torch.cuda.mem_get_info()
    try:
        torch.empty(free + int(mib) * MIB, dtype=torch.uint8, device="cuda")
        print("said=nothing")
    except torch.OutOfMemoryError:
        print(f"said=OutOfMemoryError free={free // MIB}")


def torch_gemm(seconds):
    import torch

    one, other = (torch.randn(2048, 2048, device="cuda") for _ in range(2))

    def some(until):
        count = 0
        while time.monotonic() < until:
            for _ in range(8):
                one @ other
                count += 1
            torch.cuda.synchronize()
        return count

    some(time.monotonic() + WARM_UP)
    start = time.monotonic()
    count = some(start + float(seconds))
    print(f"rate={count / (time.monotonic() - start):.2f}")


def main(command, *arguments):
    if command == "graph":
        busy(*arguments, in_graph=True)
    elif command == "torch":
        {"over": torch_over, "gemm": torch_gemm}[arguments[0]](*arguments[1:])
    else:
        {"memory": memory, "hold": hold, "busy": busy, "rate": rate}[command](*arguments)


main(*sys.argv[1:])
