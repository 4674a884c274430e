"""Commands of client.py for device memory that no allocating call accounts for: memory that outlives
its handle, and memory that grows with contexts, modules and graphs.
"""

import _ctypes
import ctypes
import os
import struct

MIB = 1 << 20


class Behind:
    def early(self, ordinal="0"):
        """Queries before cuInit."""
        self.cuda = ctypes.CDLL(self.library)
        total, context = ctypes.c_size_t(), ctypes.c_void_p()
        one = self.cuda.cuDeviceTotalMem_v2(ctypes.byref(total), int(ordinal))
        other = self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(ordinal))
        return f"{one} {other}"

    def retained(self, ordinal):
        context = ctypes.c_void_p()
        return self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(ordinal))

    def reopen(self, times):
        """Opens NVML, queries and closes it, as exporters do for each scrape."""
        for _ in range(int(times)):
            nvml, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
            code = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            code = code or nvml.nvmlShutdown()
            _ctypes.dlclose(nvml._handle)
            if code:
                return code
        return 0

    def cut(self, index="0"):
        """Creates a MIG instance with the smallest profile; its UUID."""
        _, gpu = self.handle_of(index)
        info, made, part = (ctypes.c_uint * 64)(), ctypes.c_void_p(), ctypes.c_void_p()
        code = self.nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0, info)
        code = code or self.nvml.nvmlDeviceCreateGpuInstance(gpu, info[0], ctypes.byref(made))
        code = code or self.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(made, 0, 0, info)
        code = code or self.nvml.nvmlGpuInstanceCreateComputeInstance(made, info[0], ctypes.byref(part))
        return f"{code} {self.instance_of(gpu)[1]}"

    def instance_of(self, gpu):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        code = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, ctypes.byref(device))
        code = code or self.nvml.nvmlDeviceGetUUID(device, name, 96)
        return code, name.value.decode()

    def ninstance(self, index="0"):
        """The first MIG instance of a GPU."""
        code, gpu = self.handle_of(index)
        return code or "{} {}".format(*self.instance_of(gpu))

    def export(self):
        """Exports the memory as a file, as for another process."""
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

    def layers(self, width, height, layers, levels):
        """A mipmapped array in layers."""
        sides = int(width), int(height), int(layers)
        shape = (ctypes.c_size_t * 5)(*sides, 0x20 | 4 << 32, 1)
        self.last_array = ctypes.c_void_p()
        return self.cuda.cuMipmappedArrayCreate(ctypes.byref(self.last_array), shape, int(levels))

    def unlayers(self):
        return self.cuda.cuMipmappedArrayDestroy(self.last_array)

    def rdma(self, offset="0"):
        """A file by which another device reaches the last allocation, from this offset on."""
        file, start = ctypes.c_int(), ctypes.c_uint64(self.pointers[-1].value + int(offset))
        bytes, none = ctypes.c_size_t(MIB), ctypes.c_uint64(0)
        return self.cuda.cuMemGetHandleForAddressRange(ctypes.byref(file), start, bytes, 1, none)

    def behind(self, operation="1"):
        """Maps the memory behind the array, or (2) unmaps it."""
        words = [0, self.last_array.value, 0, 0, 0, 0, 0, int(operation), self.handle.value, 0, 1, 0]
        return self.cuda.cuMemMapArrayAsync((ctypes.c_uint64 * 12)(*words), 1, None)

    def poolof(self, device):
        """A device's own pool."""
        self.own_pool = ctypes.c_void_p()
        return self.cuda.cuDeviceGetDefaultMemPool(ctypes.byref(self.own_pool), int(device))

    def placepool(self, kind, device, memory="1"):
        """The pool of a location, as CUDA 13 names locations."""
        self.own_pool, place = ctypes.c_void_p(), (ctypes.c_int * 2)(int(kind), int(device))
        return self.cuda.cuMemGetDefaultMemPool(ctypes.byref(self.own_pool), place, int(memory))

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

    def binary(self, mib):
        section = struct.pack("<IIQQQQIIQQ", 0, 8, 3, 0, 0, int(mib) * MIB, 0, 0, 0, 0)
        head = b"\x7fELF" + bytes(36) + struct.pack("<QIHHHHHH", 64, 0, 64, 0, 0, 64, 1, 0)
        return head + section

    def elf(self, mib):
        """Loads a module with a variable of this many MiB, as a binary."""
        return self.load_module(self.binary(mib))

    def wrapped(self, mib):
        """The same in a fat binary, by the wrapper that compilers create."""
        binary = self.binary(mib)
        head = struct.pack("<HHIQQQQQQQ", 2, 1, 64, len(binary), 0, 0, 0, 0, 0, 0)
        self.fat_binary = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 + len(binary)) + head + binary
        at = ctypes.cast(ctypes.c_char_p(self.fat_binary), ctypes.c_void_p).value
        return struct.pack("<IIQQ", 0x466243B1, 1, at, 0)

    def fat(self, mib):
        return self.load_module(self.wrapped(mib))

    def fatlib(self, mib):
        return self.libload(mib, self.wrapped(mib))

    def libload(self, mib, image=None, kernel="k_us_5"):
        """A library with such a variable, and a kernel of it."""
        self.lib, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        nothing = (None, None, ctypes.c_uint(0))
        image = image or self.binary(mib)
        code = self.cuda.cuLibraryLoadData(ctypes.byref(self.lib), image, *nothing, *nothing)
        name = kernel.encode()
        return code or self.cuda.cuLibraryGetKernel(ctypes.byref(self.kernel), self.lib, name)

    def libkernel(self, name):
        """A library that takes no memory, and a kernel of it."""
        return self.libload(0, kernel=name)

    def moduleof(self):
        return self.cuda.cuLibraryGetModule(ctypes.byref(ctypes.c_void_p()), self.lib)

    def functionof(self):
        return self.cuda.cuKernelGetFunction(ctypes.byref(ctypes.c_void_p()), self.kernel)

    def kernelrun(self):
        """Launches the library's kernel as it is."""
        shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
        code = self.cuda.cuLaunchKernel(self.kernel, *shape, None, None, None)
        return code or self.cuda.cuCtxSynchronize()

    def unlibrary(self):
        return self.cuda.cuLibraryUnload(self.lib)

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
        """A graph that allocates these many MiB, one after another; negative: and frees them; `:1`
        behind a size: on the second GPU, `:host`: on the host, `:part`: on a part of the first;
        `within` first: in a child graph; `uploaded` first: allocated at instantiation; `v12000`
        first: instantiated by what cuGetProcAddress returns for this version."""
        graph, self.exec = ctypes.c_void_p(), ctypes.c_void_p()
        version = int(sizes[0][1:]) if sizes[0][0] == "v" else None
        code = self.cuda.cuGraphCreate(ctypes.byref(graph), 0)
        flags, within, uploaded = 0, sizes[0] == "within", sizes[0] == "uploaded"
        for word in sizes[bool(within or uploaded or version) :]:
            size, _, place = word.partition(":")
            size = int(size)
            place = {"": 1, "1": 1 | 1 << 32, "host": 2, "part": 6 | 0x100 << 32}[place]
            if size == 0:
                # Memory of the launch before is freed at the next.
                flags = 1
                continue
            node, none = ctypes.c_void_p(), ctypes.c_void_p()
            params = (ctypes.c_uint64 * 15)(1, place, *[0] * 11, abs(size) * MIB, 0)
            code = code or self.cuda.cuGraphAddMemAllocNode(ctypes.byref(node), graph, none, 0, params)
            if size < 0:
                pointer = ctypes.c_uint64(params[14])
                code = code or self.cuda.cuGraphAddMemFreeNode(
                    ctypes.byref(node), graph, none, 0, pointer
                )
            self.pointers.append(ctypes.c_uint64(params[14]))
        if within:
            inner, graph, node = graph, ctypes.c_void_p(), ctypes.c_void_p()
            code = code or self.cuda.cuGraphCreate(ctypes.byref(graph), 0)
            moved = (ctypes.c_uint64 * 32)(4, 0, inner.value, 1)
            code = code or self.cuda.cuGraphAddNode(ctypes.byref(node), graph, None, 0, moved)
        if uploaded:
            params = (ctypes.c_uint64 * 4)(2, 0, 0, 0)
            return code or self.cuda.cuGraphInstantiateWithParams(
                ctypes.byref(self.exec), graph, params
            )
        if version:
            return code or self.instantiate(graph, version, flags)
        return code or self.cuda.cuGraphInstantiateWithFlags(
            ctypes.byref(self.exec), graph, ctypes.c_uint64(flags)
        )

    def instantiate(self, graph, version, flags):
        """With flags from CUDA 12 on; before, with places for a node and a log, and without flags."""
        found = self.address("cuGraphInstantiate", version, "cuGetProcAddress")
        handle, place = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        kinds = [place, handle, ctypes.c_uint64]
        rest = [flags]
        if version < 12000:
            kinds = [place, handle, handle, ctypes.c_char_p, ctypes.c_size_t]
            rest = [None, ctypes.create_string_buffer(64), 64]
        call = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(ctypes.cast(found, handle).value)
        return call(ctypes.byref(self.exec), graph, *rest)

    def function(self, name):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuModuleLoadData(ctypes.byref(module), b"any")
        name = name.encode()
        return code or self.cuda.cuModuleGetFunction(ctypes.byref(function), module, name), function

    def run(self, name):
        """Launches a kernel of this name."""
        code, function = self.function(name)
        shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
        code = code or self.cuda.cuLaunchKernel(function, *shape, None, None, None)
        return code or self.cuda.cuCtxSynchronize()

    def kernelgraph(self, name):
        """A graph that launches a kernel of this name."""
        code, function = self.function(name)
        graph, node, self.exec = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        code = code or self.cuda.cuGraphCreate(ctypes.byref(graph), 0)
        shape = struct.pack("<QIIIIIII4xQQQQ", function.value or 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
        code = code or self.cuda.cuGraphAddKernelNode_v2(ctypes.byref(node), graph, None, 0, shape)
        return code or self.cuda.cuGraphInstantiateWithFlags(
            ctypes.byref(self.exec), graph, ctypes.c_uint64(0)
        )

    def keepexec(self):
        self.kept = self.exec
        return 0

    def otherexec(self):
        self.exec = self.kept
        return 0

    def launch(self):
        return self.cuda.cuGraphLaunch(self.exec, None)

    def graphtrim(self):
        return self.cuda.cuDeviceGraphMemTrim(self.device)
