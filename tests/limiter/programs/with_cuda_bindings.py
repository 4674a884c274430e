"""cuda-bindings: allocates, copies, launches, and asks for more than there is."""

import json

from cuda.bindings import driver


def done(answer):
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(repr(code))
    return values[0] if len(values) == 1 else values


done(driver.cuInit(0))
device = done(driver.cuDeviceGet(0))
context = done(driver.cuDevicePrimaryCtxRetain(device))
done(driver.cuCtxSetCurrent(context))
free, total = done(driver.cuMemGetInfo())
pointer = done(driver.cuMemAlloc(1000 << 20))
sent, back = bytes(range(256)), bytearray(256)
small = done(driver.cuMemAlloc(len(sent)))
done(driver.cuMemcpyHtoD(small, sent, len(sent)))
done(driver.cuMemcpyDtoH(back, small, len(back)))
module = done(driver.cuModuleLoadData(b".version 8.0\n.visible .entry kernel(\n)\n{ret;}\n"))
kernel = done(driver.cuModuleGetFunction(module, b"kernel"))
stream = done(driver.cuStreamCreate(1))
done(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
done(driver.cuStreamSynchronize(stream))
refused, _ = driver.cuMemAlloc(total)
done(driver.cuStreamDestroy(stream))
done(driver.cuMemFree(pointer))
print(json.dumps({"total": total >> 20, "works": bytes(back) == sent, "refused": refused.name}))
