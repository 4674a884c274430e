"""Commands of the client that take memory of a card behind the calls that allocate: what outlives
its handle, and what grows with contexts, modules and graphs.

Fed by: client.py, whose fields it uses. Must not: know that a limiter is there.
"""

import ctypes
import os
import struct

MIB = 1 << 20


class Behind:
    def export(self):
        """The memory as a file, as another process would get it."""
        self.file = ctypes.c_int()
        return self.cuda.cuMemExportToShareableHandle(
            ctypes.byref(self.file), self.handle, ctypes.c_int(1), ctypes.c_uint64(0)
        )

    def imported(self):
        handle = ctypes.c_uint64()
        code = self.cuda.cuMemImportFromShareableHandle(
            ctypes.byref(handle), ctypes.c_void_p(self.file.value), ctypes.c_int(1)
        )
        self.handle = handle
        return code

    def closed(self):
        os.close(self.file.value)
        return 0

    def sparse(self):
        """An array whose memory is mapped later."""
        shape = (ctypes.c_size_t * 5)(1024, 1024, 0, 0x20 | 4 << 32, 0x40)
        array = ctypes.c_void_p()
        code = self.cuda.cuArray3DCreate_v2(ctypes.byref(array), shape)
        self.last_array = array
        return code

    def behind(self, operation="1"):
        """Puts the memory behind the array, or (2) takes it away."""
        words = [0, self.last_array.value, 0, 0, 0, 0, 0, int(operation), self.handle.value, 0, 1, 0]
        return self.cuda.cuMemMapArrayAsync((ctypes.c_uint64 * 12)(*words), 1, None)

    def limit(self, which, value):
        return self.cuda.cuCtxSetLimit(ctypes.c_uint(int(which)), ctypes.c_size_t(int(value)))

    def green(self):
        green, context = ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda = self.cuda or ctypes.CDLL(self.library)
        code = self.cuda.cuInit(0)
        self.device = ctypes.c_int(0)
        code = code or self.cuda.cuGreenCtxCreate(
            ctypes.byref(green), ctypes.c_void_p(1), self.device, ctypes.c_uint(1)
        )
        code = code or self.cuda.cuCtxFromGreenCtx(ctypes.byref(context), green)
        self.contexts["green"] = green
        return code or self.cuda.cuCtxSetCurrent(context)

    def ungreen(self):
        return self.cuda.cuGreenCtxDestroy(self.contexts["green"])

    def elf(self, mib):
        """A module with a variable of so many MiB, as a binary."""
        section = struct.pack("<IIQQQQIIQQ", 0, 8, 3, 0, 0, int(mib) * MIB, 0, 0, 0, 0)
        head = b"\x7fELF" + bytes(36) + struct.pack("<QIHHHHHH", 64, 0, 64, 0, 0, 64, 1, 0)
        return self.load_module(head + section)

    def ptx(self, mib):
        """The same, as text."""
        text = f".version 8.0\n.visible .global .align 4 .b8 big[{int(mib) * MIB}];\n"
        return self.load_module(text.encode() + b"\0")

    def load_module(self, image):
        self.module = ctypes.c_void_p()
        return self.cuda.cuModuleLoadData(ctypes.byref(self.module), image)

    def unmodule(self):
        return self.cuda.cuModuleUnload(self.module)

    def graph(self, *sizes):
        """A graph that allocates so many MiB, one after another; negative: and frees them."""
        graph, self.exec = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuGraphCreate(ctypes.byref(graph), 0)
        flags = 0
        for size in map(int, sizes):
            if size == 0:
                # Memory of the launch before is freed at the next.
                flags = 1
                continue
            node, none = ctypes.c_void_p(), ctypes.c_void_p()
            params = (ctypes.c_uint64 * 15)(1, 1, *[0] * 11, abs(size) * MIB, 0)
            code = code or self.cuda.cuGraphAddMemAllocNode(ctypes.byref(node), graph, none, 0, params)
            if size < 0:
                pointer = ctypes.c_uint64(params[14])
                code = code or self.cuda.cuGraphAddMemFreeNode(
                    ctypes.byref(node), graph, none, 0, pointer
                )
            self.pointers.append(ctypes.c_uint64(params[14]))
        return code or self.cuda.cuGraphInstantiateWithFlags(
            ctypes.byref(self.exec), graph, ctypes.c_uint64(flags)
        )

    def launch(self):
        return self.cuda.cuGraphLaunch(self.exec, None)

    def graphtrim(self):
        return self.cuda.cuDeviceGraphMemTrim(self.device)
