"""Memory that two processes share, and memory of processes that have ended: what a driver keeps,
and what NVML counts for whom. Parts of facts.py."""

import array
import contextlib
import ctypes
import fcntl
import os
import random
import socket
import struct
import tempfile
import time
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p

import parts
import probe
from parts import report
from probe import MIB, Attempts, Driver, Nvml

GIB = 1 << 30
# CUmemAllocationHandleType
DESCRIPTOR, FABRIC = 1, 8
# fcntl; Python 3.8 lacks the name.
OFD_SETLK = 37
# Seconds within which the memory of an ended process should be free.
FREED = 20


def nvml_of_cuda():
    """NVML for the device of CUDA, whose UUID a process of its own reads: this one must have no
    context."""
    return Nvml(parts.call("uuid")["uuid"])


def uuid():
    report(uuid=Driver(context=False).uuid())


def seen_by(nvml):
    """The device's memory in use and NVML's figure of each process, as soon as it is stable."""
    return {"device_mib": probe.settled(nvml.used) / MIB, "processes_mib": nvml.processes()}


def properties(kind):
    """CUmemAllocationProp: pinned memory on device 0 that can be exported in this way."""
    return (c_uint * 8)(1, kind, 1, 0)


def lock(descriptor, kind):
    """Whether the open file takes such a lock, on one byte at a random 62-bit offset."""
    words = struct.pack("hhqqi4x", kind, os.SEEK_SET, random.getrandbits(62), 1, 0)
    try:
        fcntl.fcntl(descriptor, OFD_SETLK, words)
    except OSError as error:
        return os.strerror(error.errno)
    return "taken"


def described(descriptor):
    """What the kernel shows of an exported descriptor, and of a lock on it."""
    status = os.fstat(descriptor)
    locks = {"read": lock(descriptor, fcntl.F_RDLCK), "write": lock(descriptor, fcntl.F_WRLCK)}
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        info = file.read().splitlines()
    return {
        "link": os.readlink(f"/proc/self/fd/{descriptor}"),
        "mode": oct(status.st_mode),
        "device_and_inode": [status.st_dev, status.st_ino],
        "locks": locks,
        "fdinfo": info,
    }


def send(channel, descriptor):
    """Sends a descriptor over a socket, as NCCL does."""
    with socket.socket(fileno=os.dup(int(channel))) as end:
        rights = array.array("i", [descriptor])
        end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive(channel):
    with socket.socket(fileno=os.dup(int(channel))) as end:
        end.settimeout(30)
        _, ((_, _, data), *_), _, _ = end.recvmsg(1, socket.CMSG_LEN(4))
    return struct.unpack("i", data[:4])[0]


def share_block(mib, channel):
    """Exports a block by a descriptor, and lets go of it step by step."""
    driver = Driver()
    tried = Attempts(driver)
    parts.reached("context")
    handle, size = c_uint64(), c_size_t(int(mib) * MIB)
    found = [c_int(-1), c_int(-1)]
    if tried("create", "cuMemCreate", byref(handle), size, properties(DESCRIPTOR), c_uint64(0)):
        parts.reached("created")
        for name, one in zip(("export", "second_export"), found):
            tried(name, "cuMemExportToShareableHandle", byref(one), handle, DESCRIPTOR, c_uint64(0))
    opened = [one.value for one in found if one.value >= 0]
    report(exporter=tried.codes, descriptors=[described(one) for one in opened])
    if not opened:
        return
    send(channel, opened[0])
    parts.reached("exported")
    tried("release", "cuMemRelease", handle)
    parts.reached("exporter_released")
    for descriptor in opened:
        os.close(descriptor)
    report(exporter=tried.codes)
    parts.reached("exporter_closed")


def take_block(mib, channel):
    """Imports a block, maps its halves, and lets go of it step by step."""
    driver = Driver()
    tried = Attempts(driver)
    parts.reached("context")
    descriptor = receive(channel)
    report(received=described(descriptor))
    parts.reached("received")
    handle, address = c_uint64(), c_uint64()
    size, half = int(mib) * MIB, c_size_t(int(mib) * MIB // 2)
    none = c_uint64(0)
    if tried("import", "cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), 1):
        parts.reached("imported")
        tried("reserve", "cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), none,
              none)
        second = c_uint64(address.value + half.value)
        tried("map_second_half", "cuMemMap", second, half, half, handle, none)
        mapped = half
        if not tried("map_first_half", "cuMemMap", address, half, c_size_t(0), handle, none):
            mapped = c_size_t(size)
            tried("map_whole", "cuMemMap", address, mapped, c_size_t(0), handle, none)
        # CUmemAccessDesc: reading and writing by device 0.
        tried("access", "cuMemSetAccess", address, mapped, (c_uint * 3)(1, 0, 3), c_size_t(1))
        parts.reached("mapped")
        tried("unmap", "cuMemUnmap", address, mapped)
        if not tried.codes["map_second_half"]:
            tried("unmap_second_half", "cuMemUnmap", second, half)
        tried("release", "cuMemRelease", handle)
        report(importer=tried.codes)
        parts.reached("importer_released")
    report(importer=tried.codes)
    os.close(descriptor)
    parts.reached("importer_closed")


def in_order(nvml, names, mib, order):
    """What is used after each step of two processes that share memory; `order` names whose turn it
    is: 0 or 1, -1 kills the first."""
    channels = socket.socketpair()
    steps = {"before": seen_by(nvml)}
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [one.close() for one in channels])
        both = [
            stack.enter_context(parts.Worker(name, mib, one.fileno(), descriptors=[one.fileno()]))
            for name, one in zip(names, channels)
        ]
        try:
            for worker in both:
                worker.next_step()
            steps["contexts"] = seen_by(nvml)
            for turn in order:
                if turn < 0:
                    both[0].kill()
                    steps["exporter_killed"] = seen_by(nvml)
                    continue
                both[turn].send("")
                step = both[turn].next_step()
                if step is None:
                    step = f"{names[turn]}_ended"
                steps[step] = seen_by(nvml)
        except RuntimeError as error:
            steps["error"] = str(error)
        found = {name: worker.result for name, worker in zip(names, both)}
    steps["after"] = seen_by(nvml)
    return {"steps": steps, "found": found}


def descriptors():
    """A block shared by a descriptor: which of exporter, importer and descriptor keeps it, and what
    the descriptor is. Then the same with an exporter that is killed before anybody imports."""
    nvml, mib = nvml_of_cuda(), 512
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        report(lock_on_shared_memory=lock(file.fileno(), fcntl.F_WRLCK))
    names = ("share_block", "take_block")
    # Exporter: created, exported. Importer: received, imported, mapped. Exporter: released, closed,
    # ended. Importer: released, closed.
    report(exporter_first=in_order(nvml, names, mib, [0, 0, 1, 1, 1, 0, 0, 0, 1, 1]))
    report(exporter_killed=in_order(nvml, names, mib, [0, 0, 1, -1, 1, 1, 1, 1]))


def fabric():
    """Whether memory can be exported to other nodes, and by which bytes."""
    driver = Driver()
    tried = Attempts(driver)
    handle, found = c_uint64(), [(c_char * 64)(), (c_char * 64)()]
    if tried("create", "cuMemCreate", byref(handle), c_size_t(64 * MIB), properties(FABRIC),
             c_uint64(0)):
        for name, one in zip(("export", "second_export"), found):
            tried(name, "cuMemExportToShareableHandle", one, handle, FABRIC, c_uint64(0))
        report(equal_bytes=bytes(found[0]) == bytes(found[1]))
    report(codes=tried.codes)


def unmapping():
    """Milliseconds that unmap and release take while a kernel of 300 ms runs."""
    driver = Driver()
    (kernel,) = driver.kernels(probe.timed(probe.spin, 300_000))
    stream = driver.stream()
    launch = driver.launcher(kernel, stream=stream)
    tried, size, none = Attempts(driver), c_size_t(64 * MIB), c_uint64(0)
    found = {}
    for state in ("idle", "kernel_runs"):
        handle, address = c_uint64(), c_uint64()
        driver("cuMemCreate", byref(handle), size, properties(0), none)
        driver("cuMemAddressReserve", byref(address), size, c_size_t(0), none, none)
        driver("cuMemMap", address, size, c_size_t(0), handle, none)
        plain, other = c_uint64(driver.allocate(64 * MIB)), c_uint64(driver.allocate(64 * MIB))
        if state != "idle":
            launch()
        for name, *words in [
            ("cuMemGetInfo_v2", byref(c_size_t()), byref(c_size_t())),
            ("cuMemUnmap", address, size),
            ("cuMemRelease", handle),
            ("cuMemAddressFree", address, size),
            ("cuMemFree_v2", plain),
            ("cuMemFree_v2", other),
        ]:
            started = time.perf_counter()
            tried(f"{name} {state}", name, *words)
            took = round((time.perf_counter() - started) * 1000, 3)
            found.setdefault(name, {}).setdefault(state, []).append(took)
        driver("cuStreamSynchronize", stream)
    report(ms=found, codes=tried.codes)


class IpcHandle(ctypes.Structure):
    """It is passed by value."""

    _fields_ = [("bytes", c_char * 64)]


def export_memory(mib):
    driver = Driver()
    parts.reached("context")
    address, small = driver.allocate(int(mib) * MIB), [driver.allocate(4096) for _ in range(2)]
    found = []
    for one in (address, address, *small):
        handle = (c_char * 64)()
        driver("cuIpcGetMemHandle", handle, c_uint64(one))
        found.append(bytes(handle).hex())
    report(handle=found[0], equal_bytes=found[0] == found[1], distance=small[1] - small[0],
           small_equal_bytes=found[2] == found[3], small=found[2:])
    parts.reached("exported")
    driver.free(address)
    parts.reached("exporter_freed")


def import_memory():
    driver = Driver()
    tried = Attempts(driver)
    parts.reached("context")
    handle = parts.reached("ready")
    found = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
    driver.library.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, IpcHandle, c_uint]
    address, base, size = c_uint64(), c_uint64(), c_size_t()
    if tried("open", "cuIpcOpenMemHandle_v2", byref(address), found, 1):
        tried("range", "cuMemGetAddressRange_v2", byref(base), byref(size), address)
        report(size=size.value, at_base=base.value == address.value)
    report(codes=tried.codes)
    parts.reached("imported")
    if address.value:
        tried("close", "cuIpcCloseMemHandle", address)
    report(codes=tried.codes)
    parts.reached("importer_closed")


def ipc():
    """Memory of cuMemAlloc that another process opened: who keeps it, and what NVML counts."""
    mib = 512
    nvml = nvml_of_cuda()
    steps = {"before": seen_by(nvml)}
    with parts.Worker("export_memory", mib) as exporter, parts.Worker("import_memory") as importer:
        for worker in (exporter, importer):
            worker.next_step()
        steps["contexts"] = seen_by(nvml)
        for worker, line in [
            (exporter, ""), (importer, ""), (importer, None), (exporter, ""), (exporter, ""),
            (importer, ""),
        ]:
            worker.send(exporter.result["handle"] if line is None else line)
            step = worker.next_step() or "exporter_ended"
            steps[step] = seen_by(nvml)
        importer.end()
        report(exporter=exporter.result, importer=importer.result)
    steps["after"] = seen_by(nvml)
    report(mib=mib, steps=steps)


def pool_attributes(driver, pool):
    """Reserved and used bytes, or the codes of the errors."""
    found = {}
    for name, number in (("reserved", 5), ("used", 7)):
        value = c_uint64()
        code = driver.ask("cuMemPoolGetAttribute", pool, number, byref(value))
        found[name] = f"error {code}" if code else value.value
    return found


def share_pool(mib, channel):
    """Exports a pool and memory of it, frees it and trims the pool while the other has it."""
    driver = Driver()
    tried = Attempts(driver)
    parts.reached("context")
    # CUmemPoolProps: pinned memory on device 0, exported by a descriptor.
    words = (c_uint * 32)(1, 1, 1, 0)
    pool, address, found, stream = c_void_p(), c_uint64(), c_int(-1), driver.stream()
    exported = [(c_char * 64)(), (c_char * 64)()]
    size = c_size_t(int(mib) * MIB)
    if tried("create", "cuMemPoolCreate", byref(pool), words):
        tried("allocate", "cuMemAllocFromPoolAsync", byref(address), size, pool, stream)
        driver("cuStreamSynchronize", stream)
        tried("export", "cuMemPoolExportToShareableHandle", byref(found), pool, 1, c_uint64(0))
        for name, one in zip(("pointer", "second_pointer"), exported):
            tried(name, "cuMemPoolExportPointer", one, address)
        report(equal_bytes=bytes(exported[0]) == bytes(exported[1]))
    report(exporter=tried.codes)
    if found.value < 0 or tried.codes.get("pointer"):
        return
    send(channel, found.value)
    report(pointer=bytes(exported[0]).hex(), at_first=pool_attributes(driver, pool))
    parts.reached("exported")
    tried("free", "cuMemFreeAsync", address, stream)
    driver("cuStreamSynchronize", stream)
    tried("trim", "cuMemPoolTrimTo", pool, c_size_t(0))
    report(after_trim=pool_attributes(driver, pool))
    parts.reached("exporter_trimmed")
    tried("destroy", "cuMemPoolDestroy", pool)
    report(exporter=tried.codes)
    parts.reached("exporter_destroyed")


def take_pool(_, channel):
    driver = Driver()
    tried = Attempts(driver)
    data = parts.reached("context")
    descriptor = receive(channel)
    pool, address, base, size = c_void_p(), c_uint64(), c_uint64(), c_size_t()
    if tried("import", "cuMemPoolImportFromShareableHandle", byref(pool), c_void_p(descriptor), 1,
             c_uint64(0)):
        exported = (c_char * 64).from_buffer_copy(bytes.fromhex(data))
        if tried("pointer", "cuMemPoolImportPointer", byref(address), pool, exported):
            tried("range", "cuMemGetAddressRange_v2", byref(base), byref(size), address)
        report(imported=pool_attributes(driver, pool), size=size.value)
    os.close(descriptor)
    report(importer=tried.codes)
    parts.reached("imported")
    if address.value:
        tried("free", "cuMemFreeAsync", address, driver.stream())
        driver("cuCtxSynchronize")
    report(importer=tried.codes)
    parts.reached("importer_freed")


def shared_pools():
    """A pool that another process imports, and what a trim under the import gives back."""
    nvml, mib = nvml_of_cuda(), 256
    channels = socket.socketpair()
    steps = {"before": seen_by(nvml)}
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [one.close() for one in channels])
        exporter, importer = (
            stack.enter_context(parts.Worker(name, mib, one.fileno(), descriptors=[one.fileno()]))
            for name, one in zip(("share_pool", "take_pool"), channels)
        )
        for worker in (exporter, importer):
            worker.next_step()
        steps["contexts"] = seen_by(nvml)
        exporter.send("")
        if exporter.next_step():
            steps["exported"] = seen_by(nvml)
            for worker, line in [
                (importer, exporter.result["pointer"]), (exporter, ""), (importer, ""),
                (exporter, ""),
            ]:
                worker.send(line)
                steps[worker.next_step() or "ended"] = seen_by(nvml)
        report(exporter=exporter.result, importer=importer.result)
    steps["after"] = seen_by(nvml)
    report(mib=mib, steps=steps)


def hold(mib, milliseconds, forks):
    """Holds memory, while a kernel runs or with a forked child, until it is killed."""
    driver = Driver()
    for _ in range(int(mib) // 1024):
        driver.allocate(GIB)
    if int(milliseconds):
        (kernel,) = driver.kernels(probe.timed(probe.spin, int(milliseconds) * 1000))
        driver.launcher(kernel)()
    if int(forks):
        child = os.fork()
        if not child:
            # It lives on without its parent, and has what it inherited open.
            time.sleep(parts.KILLED * 3)
            os._exit(0)
        report(child=child)
    report(ready=True)
    parts.wait_for_end_of_input()


def until(condition, limit=FREED):
    """Milliseconds until a condition holds; None if it does not within the limit."""
    started = time.monotonic()
    while time.monotonic() - started < limit:
        if condition():
            return round((time.monotonic() - started) * 1000, 1)
        time.sleep(0.002)
    return None


def killed():
    """How long after SIGKILL the memory of a process is free again, also while its kernel runs, and
    whether a forked child keeps it."""
    nvml = nvml_of_cuda()
    large = min(16 * GIB, nvml.memory()["total"] // 2) // GIB * 1024
    for name, mib, milliseconds, forks in [
        ("1_gib", 1024, 0, 0), ("large", large, 0, 0), ("kernel_runs", 1024, 2000, 0),
        ("forked_child", 1024, 0, 1),
    ]:
        before = probe.settled(nvml.used)
        is_free = lambda: nvml.used() <= before + MIB
        with parts.Worker("hold", mib, milliseconds, forks) as worker:
            worker.wait_for("ready")
            held = probe.settled(nvml.used)
            started = time.monotonic()
            worker.kill()
            result = {
                "mib": mib,
                "held_mib": (held - before) / MIB,
                "process_gone_ms": round((time.monotonic() - started) * 1000, 1),
            }
            if child := worker.result.get("child"):
                result["while_child_lives"] = seen_by(nvml)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, 9)
            result["free_after_that_ms"] = until(is_free)
            result["left_mib"] = (nvml.used() - before) / MIB
        report(**{name: result})
