// A client for mps.sh: takes memory in steps of 64 MiB up to $1 MiB and says how much it got,
// runs a kernel for $2 milliseconds and says how many rounds it did, and faults when $3 is
// `fault`. One line: "mib=<n> rounds=<n> state=<ok|CUDA's word>".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>

// The same work whatever part of the multiprocessors the client may fill: under MPS the GPU
// calls that part its number of them.
const int blocks = 8192;

__global__ void burn(float *out, int rounds) {
    float x = threadIdx.x;
    for (int i = 0; i < rounds; i++) x = x * 1.0001f + 0.5f;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

__global__ void fault() { *(volatile int *)1 = 1; }

int main(int argc, char **argv) {
    const long most = argc > 1 ? atol(argv[1]) : 64;
    const long wanted_ms = argc > 2 ? atol(argv[2]) : 0;
    const bool faults = argc > 3 && !strcmp(argv[3], "fault");
    long mib = 0, rounds = 0;
    std::vector<void *> held;
    cudaError_t error = cudaFree(nullptr);
    while (error == cudaSuccess && mib < most) {
        void *block = nullptr;
        error = cudaMalloc(&block, 64L << 20);
        if (error == cudaErrorMemoryAllocation) break;
        if (error == cudaSuccess) mib += 64, held.push_back(block);
    }
    if (error == cudaErrorMemoryAllocation) cudaGetLastError(), error = cudaSuccess;
    if (error == cudaSuccess && held.empty()) error = cudaErrorMemoryAllocation;
    if (faults && error == cudaSuccess) {
        fault<<<1, 1>>>();
        error = cudaDeviceSynchronize();
    }
    if (error == cudaSuccess && wanted_ms > 0) {
        auto *out = static_cast<float *>(held.front());
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(wanted_ms);
        while (error == cudaSuccess && std::chrono::steady_clock::now() < end) {
            burn<<<blocks, 256>>>(out, 20000);
            error = cudaDeviceSynchronize();
            rounds++;
        }
    }
    printf("mib=%ld rounds=%ld state=%s\n", mib, rounds,
           error == cudaSuccess ? "ok" : cudaGetErrorName(error));
    return error == cudaSuccess ? 0 : 1;
}
