"""Commands of client.py for device memory that no allocating call accounts for: memory that outlives
its handle, and memory that grows with contexts and graphs.
"""

import _ctypes
import ctypes
import os

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

    def begin(self):
        """Opens the driver, which has locks of its own, and nothing of the limiter."""
        self.cuda = self.open(self.library)
        return self.cuda.cuInit(0)

    def pid(self):
        return os.getpid()

    def suspend(self, pid):
        lock = self.cuda.cuCheckpointProcessLock(int(pid), None)
        return f"{lock} {self.cuda.cuCheckpointProcessCheckpoint(int(pid), None)}"

    def elsewhere(self, pid):
        """Asks for a restore to other devices."""
        pairs = (ctypes.c_uint64 * 8)(1, 1)
        return self.cuda.cuCheckpointProcessRestore(int(pid), pairs)

    def restore(self, pid):
        restore = self.cuda.cuCheckpointProcessRestore(int(pid), None)
        return f"{restore} {self.cuda.cuCheckpointProcessUnlock(int(pid), None)}"

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

    def greenstream(self):
        """A stream of a green context that is not converted to a context."""
        green, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuGreenCtxCreate(
            ctypes.byref(green), ctypes.c_void_p(1), ctypes.c_int(0), ctypes.c_uint(1)
        )
        return code or self.cuda.cuGreenCtxStreamCreate(ctypes.byref(self.stream), green, 1, 0)

    def ungreen(self):
        return self.cuda.cuGreenCtxDestroy(self.contexts["green"])

    def graph(self, *sizes):
        """A graph that allocates these many MiB, one after another; negative: and frees them;
        `uploaded` first: allocated at instantiation."""
        graph, self.exec = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuGraphCreate(ctypes.byref(graph), 0)
        uploaded = sizes[0] == "uploaded"
        for size in map(int, sizes[uploaded:]):
            node, none = ctypes.c_void_p(), ctypes.c_void_p()
            params = (ctypes.c_uint64 * 15)(1, 1, *[0] * 11, abs(size) * MIB, 0)
            code = code or self.cuda.cuGraphAddMemAllocNode(ctypes.byref(node), graph, none, 0, params)
            pointer = ctypes.c_uint64(params[14])
            if size < 0:
                code = code or self.cuda.cuGraphAddMemFreeNode(
                    ctypes.byref(node), graph, none, 0, pointer
                )
            self.pointers.append(pointer)
        params = (ctypes.c_uint64 * 4)(2 if uploaded else 0, 0, 0, 0)
        return code or self.cuda.cuGraphInstantiateWithParams(ctypes.byref(self.exec), graph, params)

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

    def launch(self):
        return self.cuda.cuGraphLaunch(self.exec, None)

    def graphtrim(self):
        return self.cuda.cuDeviceGraphMemTrim(self.device)
