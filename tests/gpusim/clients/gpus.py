"""Prints as JSON what nvidia-ml-py reports of the driver that the loader finds."""

import json

import pynvml


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def instances(gpu):
    """The MIG devices of a GPU, as nvidia-smi -L lists them."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            one = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
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
gpus = []
for index in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    gpus.append(
        {
            "name": text(pynvml.nvmlDeviceGetName(gpu)),
            "uuid": text(pynvml.nvmlDeviceGetUUID(gpu)),
            "serial": text(pynvml.nvmlDeviceGetSerial(gpu)),
            "pci": text(pynvml.nvmlDeviceGetPciInfo(gpu).busId),
            "memory": memory.total // 2**20,
            "used": memory.used // 2**20,
            "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(gpu)),
            "mig": list(pynvml.nvmlDeviceGetMigMode(gpu)),
            "instances": instances(gpu),
            "processes": [[p.pid, p.usedGpuMemory // 2**20] for p in processes],
        }
    )
print(json.dumps({"driver": text(pynvml.nvmlSystemGetDriverVersion()), "gpus": gpus}))
pynvml.nvmlShutdown()
