"""A CUDA and NVML client: runs the commands of its arguments and prints one answer a line."""

import ctypes
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))

from behind import MIB, Behind  # noqa: E402
from order import Order  # noqa: E402


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_uint64) for name in ("total", "reserved", "free", "used")
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_uint64),
        ("gi", ctypes.c_uint),
        ("ci", ctypes.c_uint),
    ]


class LongInfo(ctypes.Structure):
    """The same on drivers 535.43 to 535.86."""

    _fields_ = Info._fields_ + [("protected", ctypes.c_uint64)]


class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("time", ctypes.c_uint64), ("used", ctypes.c_uint * 4)]


class Utilization(ctypes.Structure):
    _fields_ = [("time", ctypes.c_uint64), ("pid", ctypes.c_uint), ("used", ctypes.c_uint * 6)]


class Utilizations(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("seen", ctypes.c_uint64),
        ("list", ctypes.POINTER(Utilization)),
    ]


class Flat(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_uint),
        ("channels", ctypes.c_uint),
    ]


class Prop(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("place", ctypes.c_int),
        ("device", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


class Bypassed:
    """The functions of a driver library as libc's own dlsym finds them, whatever is preloaded."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        libc = ctypes.CDLL("libc.so.6")
        libc.dlvsym.restype = ctypes.c_void_p
        libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        versions = (b"GLIBC_2.34", b"GLIBC_2.17", b"GLIBC_2.2.5")
        found = (libc.dlvsym(libc._handle, b"dlsym", version) for version in versions)
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
        self.find = kind(next(filter(None, found)))

    def __getattr__(self, name):
        address = self.find(self.library._handle, name.encode())
        if not address:
            raise AttributeError(name)
        function = ctypes.CFUNCTYPE(ctypes.c_int)(address)
        setattr(self, name, function)
        return function


class Client(Behind, Order):
    def __init__(self):
        self.cuda = None
        self.open = ctypes.CDLL
        self.nvml = None
        self.library = "libcuda.so.1"
        self.pointers = []
        self.contexts = {}
        self.stream = None

    def address(self, name, version, how):
        """A function by dlsym, or by cuGetProcAddress_v2."""
        if how == "dlsym":
            return getattr(self.cuda, name)
        found, status = ctypes.c_void_p(), ctypes.c_uint()
        code = self.cuda.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(status)
        )
        assert code == 0, f"cuGetProcAddress {name}: {code}"
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(found.value)

    def load(self, path):
        """Loads another library than the usual one, past a preloaded one."""
        self.library = path
        self.open = Bypassed
        return 0

    def init(self, ordinal="0"):
        self.cuda = self.open(self.library)
        code = self.cuda.cuInit(0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if code == 0:
            code = self.cuda.cuDeviceGet(ctypes.byref(device), int(ordinal))
        self.device = device
        if code == 0:
            code = self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        if code == 0:
            code = self.cuda.cuCtxSetCurrent(context)
        return code

    def reset(self):
        return self.cuda.cuDevicePrimaryCtxReset_v2(self.device)

    def create(self, name="cuCtxCreate_v2"):
        context = ctypes.c_void_p()
        code = getattr(self.cuda, name)(ctypes.byref(context), 0, self.device, 0, None)
        self.contexts["last"] = context
        return code

    def destroy(self, name="cuCtxDestroy_v2"):
        return getattr(self.cuda, name)(self.contexts["last"])

    def count(self):
        count = ctypes.c_int()
        code = self.cuda.cuDeviceGetCount(ctypes.byref(count))
        return f"{code} {count.value}"

    def total(self):
        total = ctypes.c_size_t()
        code = self.cuda.cuDeviceTotalMem_v2(ctypes.byref(total), self.device)
        return f"{code} {total.value // MIB}"

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return f"{code} {free.value // MIB} {total.value // MIB}"

    def everything(self):
        """Allocates all that is free; the codes of that and of one byte more, and how many MiB."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        code = code or self.bytes(free.value)
        return f"{code} {self.bytes(1)} {free.value // MIB}"

    def alloc(self, mib, how="dlsym"):
        name = "cuMemAlloc_v2" if how == "dlsym" else "cuMemAlloc"
        self.last_size = int(mib) * MIB
        return self.keep(self.address(name, 12000, how), ctypes.c_size_t(int(mib) * MIB))

    def grown(self, mib):
        """Allocates as soon as the share has grown by that; what CUDA and NVML say then, and when."""
        deadline = time.monotonic() + 60
        while (code := self.alloc(mib)) == 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        now = time.time()
        return f"{code} {self.info()} {self.nmemory()} {now:.3f}"

    def bytes(self, size):
        return self.keep(self.cuda.cuMemAlloc_v2, ctypes.c_size_t(int(size)))

    def managed(self, mib):
        size = ctypes.c_size_t(int(mib) * MIB)
        return self.keep(self.cuda.cuMemAllocManaged, size, ctypes.c_uint(1))

    def pitch(self, width, height):
        pitch = ctypes.c_size_t()
        size = (ctypes.byref(pitch), ctypes.c_size_t(int(width)), ctypes.c_size_t(int(height)))
        return self.keep(self.cuda.cuMemAllocPitch_v2, *size, ctypes.c_uint(4))

    def array(self, width, height):
        flat = Flat(int(width), int(height), 0x20, 4)
        array = ctypes.c_void_p()
        code = self.cuda.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(flat))
        self.last_array = array
        return code

    def unarray(self):
        return self.cuda.cuArrayDestroy(self.last_array)

    def oldtotal(self):
        """The variant of CUDA 3.1."""
        return self.cuda.cuDeviceTotalMem(ctypes.byref(ctypes.c_uint()), self.device)

    def oldinfo(self):
        """The variant of CUDA 3.1."""
        return self.cuda.cuMemGetInfo(*(ctypes.byref(ctypes.c_uint()) for _ in range(2)))

    def old(self):
        """The variant of CUDA 3.1."""
        return self.cuda.cuMemAlloc((ctypes.c_uint * 1)(), ctypes.c_uint(MIB))

    def share(self):
        handle = (ctypes.c_uint64 * 8)()
        return self.cuda.cuIpcGetMemHandle(handle, self.pointers[-1])

    def touch(self):
        """Touches a byte of each page of the last allocation."""
        pointer, size = self.pointers[-1].value, self.last_size
        one = ctypes.c_ubyte(1), ctypes.c_size_t(1)
        pages = range(pointer, pointer + size, 2 * MIB)
        return max(self.cuda.cuMemsetD8_v2(ctypes.c_uint64(page), *one) for page in pages)

    def work(self, rounds, milliseconds="10"):
        """Runs a kernel that uses all of the last allocation, several times."""
        name = f"k_ms_{milliseconds}_touch".encode()
        kernel, module = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuModuleLoadData(ctypes.byref(module), b"any")
        code = code or self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name)
        size = ctypes.c_uint64(self.last_size)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(self.pointers[-1]), ctypes.addressof(size))
        shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
        for _ in range(int(rounds)):
            code = code or self.cuda.cuLaunchKernel(kernel, *shape, None, arguments, None)
            code = code or self.cuda.cuCtxSynchronize()
        return code

    def physical(self, mib, device="0", place="1"):
        prop, handle = Prop(1, 1, int(place), int(device), None, 0), ctypes.c_uint64()
        self.cuda.cuMemCreate.argtypes = None
        code = self.cuda.cuMemCreate(
            ctypes.byref(handle), ctypes.c_size_t(int(mib) * MIB), ctypes.byref(prop), ctypes.c_uint64(0)
        )
        self.handle, self.handle_size = handle, int(mib) * MIB
        return code

    def map(self):
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(self.handle_size)
        zero = ctypes.c_uint64(0)
        code = self.cuda.cuMemAddressReserve(ctypes.byref(address), size, zero, zero, zero)
        if code == 0:
            code = self.cuda.cuMemMap(address, size, ctypes.c_size_t(0), self.handle, zero)
        self.mapped = address
        return code

    def unmap(self):
        return self.cuda.cuMemUnmap(self.mapped, ctypes.c_size_t(self.handle_size))

    def unphysical(self):
        return self.cuda.cuMemRelease(self.handle)

    def pool(self, kind="1", place="1", device="0"):
        """Creates a pool: kind of memory (1 pinned, 2 managed) and location."""
        prop, pool = (ctypes.c_int * 64)(int(kind), 0, int(place), int(device)), ctypes.c_void_p()
        code = self.cuda.cuMemPoolCreate(ctypes.byref(pool), prop)
        self.own_pool = pool
        return code

    def unpool(self):
        return self.cuda.cuMemPoolDestroy(self.own_pool)

    def threshold(self, *wanted):
        """MiB of the pool's release threshold, which is set before where one is given."""
        value, code = ctypes.c_uint64(), 0
        for mib in wanted:
            value.value = int(mib) * MIB
            code = self.cuda.cuMemPoolSetAttribute(self.own_pool, 4, ctypes.byref(value))
        code = code or self.cuda.cuMemPoolGetAttribute(self.own_pool, 4, ctypes.byref(value))
        return f"{code} {value.value // MIB}"

    def frompool(self, mib):
        self.last_size = int(mib) * MIB
        size = ctypes.c_size_t(self.last_size)
        return self.keep(self.cuda.cuMemAllocFromPoolAsync, size, self.own_pool, self.stream)

    def ordered(self, mib):
        return self.keep(self.cuda.cuMemAllocAsync, ctypes.c_size_t(int(mib) * MIB), self.stream)

    def unordered(self):
        return self.cuda.cuMemFreeAsync(self.pointers.pop(), self.stream)

    def sync(self):
        return self.cuda.cuCtxSynchronize()

    def trim(self):
        pool = ctypes.c_void_p()
        code = self.cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), self.device)
        return code or self.cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))

    def keep(self, call, *arguments):
        pointer = ctypes.c_uint64()
        code = call(ctypes.byref(pointer), *arguments)
        if code == 0:
            self.pointers.append(pointer)
        return code

    def yields(self):
        """Frees memory when the host asks for it, as `aliquot.dev/burst: yield` promises."""
        import signal

        def freed(*_):
            with open("/.aliquot/call-back") as file:
                if sum(int(line.split()[1]) for line in file) > 0:
                    while self.pointers:
                        self.free()

        signal.signal(signal.SIGUSR1, freed)
        return 0

    def free(self):
        return self.cuda.cuMemFree_v2(self.pointers.pop())

    def fork(self, *words):
        """Runs one command in a forked child that did not use CUDA before."""
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            Client().answer(",".join(words))
            sys.stdout.flush()
            os._exit(0)
        return os.waitpid(child, 0)[1]

    def linger(self):
        """Forks a child that only waits until its input ends."""
        sys.stdout.flush()
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        return 0

    def clone(self, *commands):
        """Runs commands (with `/` for `,`) in a child that libc does not know of."""
        sys.stdout.flush()
        fork, exit_signal = 56 if os.uname().machine == "x86_64" else 220, 17
        zero = ctypes.c_long(0)
        child = ctypes.CDLL(None).syscall(ctypes.c_long(fork), ctypes.c_long(exit_signal), zero, zero, zero, zero)
        if child == 0:
            client = Client()
            for command in commands:
                client.answer(command.replace("/", ","))
            sys.stdout.flush()
            os._exit(0)
        return os.waitpid(child, 0)[1]

    def forge(self):
        """Forges the counters: the container uses nothing."""
        with open("/.aliquot/counters/slots", "r+b", buffering=0) as file:
            for at in [4096] + [16384 + 1024 * slot + 64 for slot in range(16)]:
                file.seek(at)
                file.write(bytes(8))
        return 0

    def truncate(self, size):
        os.truncate("/.aliquot/counters/slots", int(size))
        return 0

    def close(self):
        """Closes all descriptors, as daemons do."""
        os.closerange(3, 1024)
        return 0

    def ninit(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return self.nvml.nvmlInit_v2()

    def handle_of(self, index):
        handle = ctypes.c_void_p()
        code = self.nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(index)), ctypes.byref(handle))
        return code, handle

    def ncount(self):
        count = ctypes.c_uint()
        code = self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return f"{code} {count.value}"

    def nmemory(self, index="0"):
        code, handle = self.handle_of(index)
        if code:
            return code
        one, two = Memory(), MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        codes = [
            self.nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(one)),
            self.nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(two)),
        ]
        assert (one.total, one.used, one.free) == (two.total, two.used, two.free)
        return f"{codes} {one.used // MIB} {one.total // MIB}"

    def nprocesses(self, index="0", kind="Info"):
        code, handle = self.handle_of(index)
        count, infos = ctypes.c_uint(64), (globals()[kind] * 64)()
        code = code or self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            handle, ctypes.byref(count), infos
        )
        own = [info.used // MIB for info in infos[: count.value] if info.pid == os.getpid()]
        return f"{code} {count.value} {own}"

    def nsamples(self, index="0"):
        """Codes, and whose samples both variants returned: our own, others', empty entries."""
        code, handle = self.handle_of(index)
        samples, count = (Sample * 8)(), ctypes.c_uint(8)
        zero = ctypes.c_uint64(0)
        one = self.nvml.nvmlDeviceGetProcessUtilization(handle, samples, ctypes.byref(count), zero)
        list = (Utilization * 8)()
        infos = Utilizations(ctypes.sizeof(Utilizations) | 1 << 24, 8, 0, list)
        other = self.nvml.nvmlDeviceGetProcessesUtilizationInfo(handle, ctypes.byref(infos))
        found = [
            (own := sum(entry.pid == os.getpid() for entry in form), sum(entry.pid != 0 for entry in form) - own)
            for form in (samples, list)
        ]
        return f"{code} {one} {count.value} {other} {infos.count} {found}"

    def busy(self, milliseconds):
        """Launches a kernel of this duration, and does not wait for it."""
        kernel, module = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.cuda.cuModuleLoadData(ctypes.byref(module), b"any")
        name = f"k_ms_{milliseconds}".encode()
        code = code or self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name)
        shape = [ctypes.c_uint(length) for length in (1, 1, 1, 32, 1, 1, 0)]
        return code or self.cuda.cuLaunchKernel(kernel, *shape, None, None, None)

    def nbusy(self):
        """The samples as soon as there is one of this process."""
        assert self.busy("20000") == 0
        deadline = time.monotonic() + 15
        while (found := self.nsamples()).split()[1] != "0" and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def nuuid(self, uuid):
        handle = ctypes.c_void_p()
        return self.nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))

    def ready(self):
        return 0

    def hold(self):
        sys.stdout.flush()
        sys.stdin.readline()
        return 0

    def answer(self, command):
        name, *arguments = command.split(",")
        print(f"{command}: {getattr(self, name)(*arguments)}", flush=True)


def main():
    client = Client()
    for command in sys.argv[1:]:
        client.answer(command)


main()
