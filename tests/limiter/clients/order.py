"""Commands of client.py about order and contexts: streams, threads, users of contexts."""

import ctypes
import os
import struct
import threading
import time


class Order:
    def ownstream(self):
        """Uses a new stream from here on."""
        self.stream = ctypes.c_void_p()
        return self.cuda.cuStreamCreate(ctypes.byref(self.stream), ctypes.c_uint(1))

    def capture(self):
        """Captures a new stream, for which the legacy one would have to wait, and forbids this thread
        nothing."""
        self.captured = ctypes.c_void_p()
        code = self.cuda.cuStreamCreate(ctypes.byref(self.captured), ctypes.c_uint(0))
        return code or self.cuda.cuStreamBeginCapture_v2(self.captured, ctypes.c_uint(2))

    def uncapture(self):
        return self.cuda.cuStreamEndCapture(self.captured, ctypes.byref(ctypes.c_void_p()))

    def threadordered(self, mib):
        """Allocates in the thread's own default stream."""
        size = ctypes.c_size_t(int(mib) << 20)
        return self.keep(self.cuda.cuMemAllocAsync_ptsz, size, None)

    def threadunordered(self):
        return self.cuda.cuMemFreeAsync_ptsz(self.pointers.pop(), None)

    def uncurrent(self):
        """Leaves the thread without a context."""
        self.left = ctypes.c_void_p()
        code = self.cuda.cuCtxGetCurrent(ctypes.byref(self.left))
        return code or self.cuda.cuCtxSetCurrent(None)

    def recurrent(self):
        return self.cuda.cuCtxSetCurrent(self.left)

    def private(self):
        """Creates the primary context through a private table of the driver, as older runtimes do."""
        self.cuda = ctypes.CDLL(self.library)
        table, context = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        name = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
        code = self.cuda.cuInit(0) or self.cuda.cuGetExportTable(ctypes.byref(table), name)
        if code:
            return code
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
        code = kind(table[2])(ctypes.byref(context), 0)
        return code or self.cuda.cuCtxSetCurrent(context)

    def beside(self, command, *arguments):
        """Runs a command in another thread, with our context; the driver blocks its call until `together`."""
        context, self.codes = ctypes.c_void_p(), []
        code = self.cuda.cuCtxGetCurrent(ctypes.byref(context))

        def run():
            code = self.cuda.cuCtxSetCurrent(context)
            self.codes.append(code or getattr(self, command)(*arguments))

        self.thread = threading.Thread(target=run)
        self.thread.start()
        self.file = os.environ["GPUSIM_HELD"].partition("=")[2]
        deadline = time.monotonic() + 60
        while not os.path.exists(self.file + ".held") and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def together(self):
        """Lets the other thread's call continue; its answer."""
        os.remove(self.file)
        self.thread.join()
        return self.codes[0]

    def asleep(self, command, *arguments):
        """Runs a command; also whether it used the CPU for less than a quarter of its time."""
        begun, busy = time.monotonic(), time.thread_time()
        code = getattr(self, command)(*arguments)
        busy, passed = time.thread_time() - busy, time.monotonic() - begun
        return f"{code} {4 * busy < passed}"

    def attach(self):
        return self.cuda.cuCtxAttach(ctypes.byref(ctypes.c_void_p()), ctypes.c_uint(0))

    def detach(self):
        return self.cuda.cuCtxDetach(self.contexts["last"])

    def retainrace(self):
        """One thread retains a handle of mapped memory while another releases everything."""
        for _ in range(20):
            code = self.physical("100") or self.map()
            handle, found = ctypes.c_uint64(), []
            retain = self.cuda.cuMemRetainAllocationHandle
            thread = threading.Thread(
                target=lambda: found.append(retain(ctypes.byref(handle), self.mapped))
            )
            thread.start()
            time.sleep(0.05)
            code = code or self.unmap() or self.unphysical()
            thread.join()
            if code:
                return code
            if found == [0]:
                self.handle = handle
                return 0
        return -1

    def second(self, launches):
        """Launches into a stream of the second GPU while the first one's context is current."""
        kernel, module, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        first = ctypes.c_void_p()
        code = self.cuda.cuCtxGetCurrent(ctypes.byref(first))
        code = code or self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
        code = code or self.cuda.cuCtxSetCurrent(context)
        code = code or self.cuda.cuModuleLoadData(ctypes.byref(module), b"any")
        code = code or self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k_ms_1")
        code = code or self.ownstream() or self.cuda.cuCtxSetCurrent(first)
        shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
        for _ in range(int(launches)):
            code = code or self.cuda.cuLaunchKernel(kernel, *shape, self.stream, None, None)
        return code or self.cuda.cuStreamSynchronize(self.stream)

    def queued(self, *names):
        """Launches these kernels into a new stream and waits for none."""
        module, code = ctypes.c_void_p(), self.ownstream()
        code = code or self.cuda.cuModuleLoadData(ctypes.byref(module), b"any")
        shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
        for name in names:
            kernel = ctypes.c_void_p()
            code = code or self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode())
            code = code or self.cuda.cuLaunchKernel(kernel, *shape, self.stream, None, None)
        return code

    def across(self, copies):
        """Copies 8 MiB from one GPU to another, in two ways."""
        first, context = ctypes.c_void_p(), ctypes.c_void_p()
        here, there, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(8 << 20)
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(here), size)
        code = code or self.cuda.cuCtxGetCurrent(ctypes.byref(first))
        code = code or self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
        code = code or self.cuda.cuCtxSetCurrent(context)
        code = code or self.cuda.cuMemAlloc_v2(ctypes.byref(there), size)
        code = code or self.cuda.cuCtxSetCurrent(first)
        for _ in range(int(copies)):
            code = code or self.cuda.cuMemcpyDtoD_v2(there, here, size)
            code = code or self.cuda.cuMemcpy(there, here, size)
        return code

    def sizes(self, *grids):
        """Launches a kernel with these numbers of blocks behind a word that nobody writes, once the
        kernel is known with one block; whether that took less than a second."""
        kernel, module, word = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        code = self.cuda.cuModuleLoadData(ctypes.byref(module), b"any")
        code = code or self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k_us_100")
        code = code or self.cuda.cuMemAlloc_v2(ctypes.byref(word), ctypes.c_size_t(4))

        def launch(blocks):
            shape = [ctypes.c_uint(length) for length in (int(blocks), 1, 1, 32, 1, 1, 0)]
            return self.cuda.cuLaunchKernel(kernel, *shape, self.stream, None, None)

        for _ in range(4):
            code = code or launch(1) or self.cuda.cuStreamSynchronize(self.stream)
        code = code or self.ownstream()
        code = code or self.cuda.cuStreamWaitValue32_v2(self.stream, word, 7, 1)
        begun = time.monotonic()
        for blocks in grids:
            code = code or launch(blocks)
        return f"{code} {time.monotonic() - begun < 1}"

    def deny(self, call, place=None, value=0):
        """From here on the kernel refuses a call, or those with a value in an argument, as sandboxes do."""
        number = {"madvise": (28, 233), "fcntl": (72, 25)}[call][os.uname().machine != "x86_64"]
        rows = [(0x20, 0, 0, 0), (0x15, 0, 1, number)]
        if place:
            argument = (0x20, 0, 0, 16 + 8 * int(place))
            rows = [rows[0], (0x15, 0, 3, number), argument, (0x15, 0, 1, int(value))]
        rows += [
            (0x06, 0, 0, 0x50000 | 22),  # EINVAL
            (0x06, 0, 0, 0x7FFF0000),
        ]
        code = b"".join(struct.pack("<HBBI", *row) for row in rows)
        text = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(text))
        libc = ctypes.CDLL(None)
        zero = ctypes.c_ulong(0)
        done = libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero)
        return done or libc.prctl(22, ctypes.c_ulong(2), program, zero, zero)
