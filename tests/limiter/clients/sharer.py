"""A process that shares memory with others: prints `ready PID`, then answers each line of its input.

Blocks have names. A descriptor of another process is copied as `pidfd_getfd` does, which is how PyTorch
gets it.
"""

import ctypes
import os
import sys

MIB = 1 << 20


class Prop(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("place", ctypes.c_int),
        ("device", ctypes.c_int),
        ("more", ctypes.c_uint64 * 6),
    ]


class Bytes(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 8)]


class Sharer:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        assert self.cuda.cuInit(0) == 0
        assert self.cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.cuda.cuCtxSetCurrent(context) == 0
        self.handles, self.files, self.mapped, self.pointers, self.pools = {}, {}, {}, {}, {}

    def info(self):
        """MiB that are free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value // MIB

    def create(self, name, mib):
        prop, handle = Prop(1, 1, 1, 0), ctypes.c_uint64()
        size, zero = ctypes.c_size_t(int(mib) * MIB), ctypes.c_uint64(0)
        code = self.cuda.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(prop), zero)
        self.handles[name] = handle
        return code

    def export(self, name):
        """The descriptor's number, or minus the code."""
        file = ctypes.c_int()
        code = self.cuda.cuMemExportToShareableHandle(
            ctypes.byref(file), self.handles[name], 1, ctypes.c_uint64(0)
        )
        self.files[name] = file.value
        return -code or file.value

    def take(self, name, pid, number):
        """A copy of another process's descriptor."""
        libc = ctypes.CDLL(None)
        process = libc.syscall(434, int(pid), 0)
        self.files[name] = libc.syscall(438, process, int(number), 0)
        os.close(process)
        return 0 if self.files[name] >= 0 else -1

    def own(self, name):
        """Imports from a descriptor."""
        handle = ctypes.c_uint64()
        number = ctypes.c_void_p(self.files[name])
        code = self.cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), number, 1)
        self.handles[name] = handle
        return code

    def drop(self, name):
        os.close(self.files.pop(name))
        return 0

    def release(self, name):
        return self.cuda.cuMemRelease(self.handles.pop(name))

    def map(self, name, mib):
        address, size, zero = ctypes.c_uint64(), ctypes.c_size_t(int(mib) * MIB), ctypes.c_uint64(0)
        code = self.cuda.cuMemAddressReserve(ctypes.byref(address), size, zero, zero, zero)
        code = code or self.cuda.cuMemMap(address, size, ctypes.c_size_t(0), self.handles[name], zero)
        self.mapped[name] = address, size
        return code

    def unmap(self, name):
        return self.cuda.cuMemUnmap(*self.mapped.pop(name))

    def alloc(self, name, mib):
        pointer = ctypes.c_uint64()
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(mib) * MIB))
        self.pointers[name] = pointer
        return code

    def free(self, name):
        return self.cuda.cuMemFree_v2(self.pointers.pop(name))

    def ipc(self, name):
        """The words of an IPC handle."""
        handle = Bytes()
        assert self.cuda.cuIpcGetMemHandle(ctypes.byref(handle), self.pointers[name]) == 0
        return " ".join(map(str, handle.words))

    def open(self, name, *words):
        pointer, handle = ctypes.c_uint64(), Bytes((ctypes.c_uint64 * 8)(*map(int, words)))
        code = self.cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, 1)
        self.pointers[name] = pointer
        return code

    def pool(self, name, mib):
        """Memory of a new pool."""
        prop, pool, pointer = Prop(1, 1, 1, 0), ctypes.c_void_p(), ctypes.c_uint64()
        code = self.cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(prop))
        size = ctypes.c_size_t(int(mib) * MIB)
        code = code or self.cuda.cuMemAllocFromPoolAsync(ctypes.byref(pointer), size, pool, None)
        self.pools[name], self.pointers[name] = pool, pointer
        return code

    def sharepool(self, name):
        """The number of a descriptor of the pool, and the words of its memory."""
        file, handle = ctypes.c_int(), Bytes()
        zero = ctypes.c_uint64(0)
        share = self.cuda.cuMemPoolExportToShareableHandle
        assert share(ctypes.byref(file), self.pools[name], 1, zero) == 0
        assert self.cuda.cuMemPoolExportPointer(ctypes.byref(handle), self.pointers[name]) == 0
        return " ".join(map(str, [file.value, *handle.words]))

    def openpool(self, name, pid, number, *words):
        assert self.take(name, pid, number) == 0
        pool, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        handle = Bytes((ctypes.c_uint64 * 8)(*map(int, words)))
        number = ctypes.c_void_p(self.files[name])
        share = self.cuda.cuMemPoolImportFromShareableHandle
        code = share(ctypes.byref(pool), number, 1, ctypes.c_uint64(0)) or self.drop(name)
        share = self.cuda.cuMemPoolImportPointer
        code = code or share(ctypes.byref(pointer), pool, ctypes.byref(handle))
        self.pointers[name] = pointer
        return code

    def close(self, name):
        return self.cuda.cuIpcCloseMemHandle(self.pointers.pop(name))


def main():
    sharer = Sharer()
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(getattr(sharer, name)(*arguments), flush=True)


main()
