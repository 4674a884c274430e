"""nvidia-ml-py: the first device, by calls with and without a version."""

import json

import pynvml

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(device)
newer = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
try:
    pynvml.nvmlDeviceGetViolationStatus(device, 0)
    works = True
except pynvml.NVMLError_NotSupported:
    works = newer.total == memory.total
print(json.dumps({"total": memory.total >> 20, "works": works, "refused": ""}))
pynvml.nvmlShutdown()
