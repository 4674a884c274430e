"""Prints as JSON what NVIDIA's runtime library (given by path) does on the driver that the loader
finds."""

import ctypes
import json
import sys

MIB = 2**20
cudart = ctypes.CDLL(sys.argv[1])


def call(name, *arguments):
    return getattr(cudart, name)(*arguments)


def done(name, *arguments):
    code = call(name, *arguments)
    if code != 0:
        raise SystemExit(f"{name}: {code}")


def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    done("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value // MIB, total.value // MIB


count = ctypes.c_int()
done("cudaGetDeviceCount", ctypes.byref(count))
done("cudaSetDevice", 0)
pointer = ctypes.c_void_p()
size = ctypes.c_size_t(900 * MIB)
done("cudaMalloc", ctypes.byref(pointer), size)
free, total = info()
second = ctypes.c_void_p()
refused = call("cudaMalloc", ctypes.byref(second), ctypes.c_size_t(total * MIB))
call("cudaGetLastError")
done("cudaFree", pointer)

sent = bytes(range(256)) * 16
back = ctypes.create_string_buffer(len(sent))
length = ctypes.c_size_t(len(sent))
done("cudaMalloc", ctypes.byref(pointer), length)
done("cudaMemcpy", pointer, sent, length, 1)
done("cudaMemcpy", back, pointer, length, 2)
stream, event = ctypes.c_void_p(), ctypes.c_void_p()
done("cudaStreamCreate", ctypes.byref(stream))
done("cudaEventCreate", ctypes.byref(event))
done("cudaEventRecord", event, stream)
done("cudaStreamSynchronize", stream)
done("cudaEventQuery", event)
done("cudaFree", pointer)
done("cudaDeviceSynchronize")
print(
    json.dumps(
        {
            "count": count.value,
            "free": free,
            "total": total,
            "refused": refused,
            "same": back.raw == sent,
            "freeAtEnd": info()[0],
        }
    )
)
