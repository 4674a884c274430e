"""An honest program that fills its share to the last byte: `filler.py NUMBER FILE`.

It prints `ready` when it has a context, and begins when it gets a line. Then it allocates ever smaller
blocks, device memory and managed memory, until even one byte is refused, launches kernels, frees some,
and so on, until its input ends. The first program of a container (0) shares an allocation with
the others by FILE. At the end it prints how often it filled its share.
"""

import ctypes
import os
import select
import sys
import time

MIB = 1 << 20
OUT_OF_MEMORY = 2
SHARED = 1024 * MIB
LARGEST = 256 * MIB

number, path = int(sys.argv[1]), sys.argv[2]
cuda = ctypes.CDLL("libcuda.so.1")
allocations = []


class Handle(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 8)]


def check(code, expected=(0,)):
    assert code in expected, code
    return code


def allocate(size, managed=False):
    pointer = ctypes.c_uint64()
    if managed:
        code = cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(size), 1)
    else:
        code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    if check(code, (0, OUT_OF_MEMORY)):
        return None
    if managed:
        # What is touched is on the device from then on.
        for page in range(pointer.value, pointer.value + size, 2 * MIB):
            one = ctypes.c_ubyte(1), ctypes.c_size_t(1)
            check(cuda.cuMemsetD8_v2(ctypes.c_uint64(page), *one))
    return pointer


def share():
    """Memory of the first program that the others open too."""
    handle = Handle()
    if number == 0:
        check(cuda.cuIpcGetMemHandle(ctypes.byref(handle), allocate(SHARED)))
        with open(path + ".new", "wb") as file:
            file.write(bytes(handle))
        os.rename(path + ".new", path)
        return
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        handle = Handle.from_buffer_copy(file.read())
    pointer = ctypes.c_uint64()
    check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, 1))


def kernel(name):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), b"any"))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))
    return function


def launch(function):
    """Local memory may be refused like any other."""
    shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
    code = cuda.cuLaunchKernel(function, *shape, None, None, None)
    if not check(code, (0, OUT_OF_MEMORY)):
        check(cuda.cuCtxSynchronize())


def fill():
    """Allocates until one byte is refused."""
    size = LARGEST
    while size:
        pointer = allocate(size, managed=len(allocations) % 3 == 1)
        if pointer:
            allocations.append(pointer)
        else:
            size = size // 2 if size > 2 * MIB else (1 if size > 1 else 0)


def free():
    """Frees every other allocation."""
    for pointer in allocations[::2]:
        check(cuda.cuMemFree_v2(pointer))
    del allocations[::2]


def main():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    share()
    plain, local = kernel(b"k_us_200"), kernel(b"k_us_200_local_16")
    print("ready", flush=True)
    sys.stdin.readline()
    filled = 0
    while True:
        fill()
        launch(plain)
        filled += 1
        # So that the host finds it full.
        ended, _, _ = select.select([sys.stdin], [], [], 2)
        if ended:
            break
        free()
        launch(local)
    print("filled", filled, flush=True)


main()
