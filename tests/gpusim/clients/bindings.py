"""Prints as JSON what NVIDIA's cuda-bindings sees and does on the driver that the loader finds."""

import json

from cuda.bindings import driver as cu

MIB = 2**20


def done(answer):
    code, *values = answer
    if code != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{code!r}")
    return values[0] if len(values) == 1 else values


done(cu.cuInit(0))
device = done(cu.cuDeviceGet(0))
context = done(cu.cuDevicePrimaryCtxRetain(device))
done(cu.cuCtxSetCurrent(context))
free, total = done(cu.cuMemGetInfo())

sent = bytes(range(256)) * 16
pointer = done(cu.cuMemAlloc(len(sent)))
done(cu.cuMemcpyHtoD(pointer, sent, len(sent)))
back = bytearray(len(sent))
done(cu.cuMemcpyDtoH(back, pointer, len(back)))
done(cu.cuMemFree(pointer))
refused, _ = cu.cuMemAlloc(total)

module = done(cu.cuModuleLoadData(b".version 8.0\n.visible .entry k_ms_40(\n)\n{ret;}\n"))
kernel = done(cu.cuModuleGetFunction(module, b"k_ms_40"))
missing, _ = cu.cuModuleGetFunction(module, b"other")
stream = done(cu.cuStreamCreate(1))
start, end = done(cu.cuEventCreate(0)), done(cu.cuEventCreate(0))


def launch():
    done(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))


launch()
done(cu.cuEventRecord(start, stream))
launch()
done(cu.cuEventRecord(end, stream))
done(cu.cuStreamSynchronize(stream))
took = done(cu.cuEventElapsedTime(start, end))

mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
done(cu.cuStreamBeginCapture(stream, mode))
launch()
graph = done(cu.cuStreamEndCapture(stream))
executable = done(cu.cuGraphInstantiate(graph, 0))
done(cu.cuGraphLaunch(executable, stream))
pooled = done(cu.cuMemAllocAsync(5 * MIB, stream))
done(cu.cuMemFreeAsync(pooled, stream))
done(cu.cuCtxSynchronize())

print(
    json.dumps(
        {
            "version": done(cu.cuDriverGetVersion()),
            "name": done(cu.cuDeviceGetName(64, device)).split(b"\0")[0].decode(),
            "uuid": done(cu.cuDeviceGetUuid(device)).bytes.hex(),
            "free": free // MIB,
            "total": total // MIB,
            "same": bytes(back) == sent,
            "refused": refused.name,
            "missing": missing.name,
            "took": took,
            "freeAtEnd": done(cu.cuMemGetInfo())[0] // MIB,
        }
    )
)
