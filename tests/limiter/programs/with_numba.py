"""numba-cuda: copies, compiles and launches a kernel, and asks for more than there is."""

import json
import warnings

import numpy
from numba import cuda

# One block does not fill a GPU.
warnings.simplefilter("ignore")

free, total = cuda.current_context().get_memory_info()


@cuda.jit
def double(values):
    place = cuda.grid(1)
    if place < values.size:
        values[place] *= 2


sent = numpy.arange(1000, dtype=numpy.float32)
there = cuda.to_device(sent)
same = bool((there.copy_to_host() == sent).all())
double[8, 128](there)
event = cuda.event()
event.record()
event.synchronize()
held = cuda.device_array(1000 << 20, dtype=numpy.uint8)
try:
    cuda.device_array(total, dtype=numpy.uint8)
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
print(json.dumps({"total": total >> 20, "works": same and held.size == 1000 << 20, "refused": refused}))
