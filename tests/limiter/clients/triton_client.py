"""Builds Triton's own module, which is linked against the driver, and calls it; then prints what
allocations of 2900 and 2000 MiB return in the same process."""

import ctypes

from triton.backends.nvidia.driver import CudaUtils

cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
properties = CudaUtils().get_device_properties(0)
print(properties["multiprocessor_count"], "multiprocessors")

context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for mib in (2900, 2000):
    print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)))
