"""tinygrad with DEV=CUDA:PTX: computes on a GPU, and asks for more than there is."""

import ctypes
import json

from tinygrad import Device, Tensor, dtypes
from tinygrad.runtime.autogen import cuda

sent = list(range(1000))
there = Tensor(sent, dtype=dtypes.int32).realize()
same = there.tolist() == sent
(there * 2).realize()
Device[Device.DEFAULT].synchronize()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
code = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))


def allocate(size):
    Tensor.empty(size, dtype=dtypes.uint8).uop.buffer.ensure_allocated()


allocate(1000 << 20)
try:
    allocate(total.value)
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
works = same and code == 0 and Device.DEFAULT == "CUDA"
print(json.dumps({"total": total.value >> 20, "works": works, "refused": refused}))
