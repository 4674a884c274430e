"""cuda.core: allocates, compiles by NVRTC, launches, and asks for more than there is."""

import json

from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = 'extern "C" __global__ void doubled(float *values) { values[threadIdx.x] *= 2; }'

device = Device()
device.set_current()
stream = device.create_stream()
buffer = device.allocate(1000 << 20, stream=stream)
options = ProgramOptions(arch=f"sm_{device.arch}")
kernel = Program(SOURCE, "c++", options).compile("cubin").get_kernel("doubled")
launch(stream, LaunchConfig(grid=1, block=32), kernel, buffer)
stream.sync()
code, _, total = driver.cuMemGetInfo()
try:
    device.allocate(total, stream=stream)
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
works = buffer.size == 1000 << 20 and kernel.attributes.max_threads_per_block > 0
print(json.dumps({"total": total >> 20, "works": works and code == 0, "refused": refused}))
