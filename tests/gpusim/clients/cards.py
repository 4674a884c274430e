"""Prints as JSON what nvidia-ml-py says of the driver that the loader finds."""

import json

import pynvml


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def instances(card):
    """The MIG devices of a card, as nvidia-smi -L lists them."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            one = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except pynvml.NVMLError_NotFound:
            continue
        found.append(
            {
                "uuid": text(pynvml.nvmlDeviceGetUUID(one)),
                "gpuInstance": pynvml.nvmlDeviceGetGpuInstanceId(one),
                "computeInstance": pynvml.nvmlDeviceGetComputeInstanceId(one),
            }
        )
    return found


pynvml.nvmlInit()
cards = []
for index in range(pynvml.nvmlDeviceGetCount()):
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    cards.append(
        {
            "name": text(pynvml.nvmlDeviceGetName(card)),
            "uuid": text(pynvml.nvmlDeviceGetUUID(card)),
            "serial": text(pynvml.nvmlDeviceGetSerial(card)),
            "pci": text(pynvml.nvmlDeviceGetPciInfo(card).busId),
            "memory": memory.total // 2**20,
            "used": memory.used // 2**20,
            "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(card)),
            "mig": list(pynvml.nvmlDeviceGetMigMode(card)),
            "instances": instances(card),
            "processes": [[p.pid, p.usedGpuMemory // 2**20] for p in processes],
        }
    )
try:
    pynvml.nvmlDeviceGetGpcClkVfOffset(pynvml.nvmlDeviceGetHandleByIndex(0))
    missing = "answered"
except pynvml.NVMLError_FunctionNotFound:
    missing = "function not found"
print(
    json.dumps(
        {
            "driver": text(pynvml.nvmlSystemGetDriverVersion()),
            "cards": cards,
            "notSimulated": missing,
        }
    )
)
pynvml.nvmlShutdown()
