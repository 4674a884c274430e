/* What is linked against both libraries of the driver. As a program it prints what an allocation of
 * 2900 MiB and then one of 2000 MiB return, and the MiB that NVML reports; in a share of 3000 MiB
 * there is a context, too, and only the second one fits. As a library it has the allocation as a
 * function, and the calls to which Triton's driver.c is linked. */
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long address;
extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(address *, size_t);
extern int cuMemFree_v2(address);

int allocate(size_t mib) {
    int device, code;
    void *context;
    address at;
    if ((code = cuInit(0)) || (code = cuDeviceGet(&device, 0)) ||
        (code = cuDevicePrimaryCtxRetain(&context, device)) || (code = cuCtxSetCurrent(context)))
        return 1000 + code;
    code = cuMemAlloc_v2(&at, mib << 20);
    return code ? code : cuMemFree_v2(at);
}

#ifdef PROGRAM
extern int nvmlInit_v2(void);
extern int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
extern int nvmlDeviceGetMemoryInfo(void *, unsigned long long *);

int main(void) {
    void *device;
    unsigned long long memory[3];
    int refused = allocate(2900), allocated = allocate(2000);
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) ||
        nvmlDeviceGetMemoryInfo(device, memory))
        return 1;
    printf("%d %d %llu\n", refused, allocated, memory[0] >> 20);
    return 0;
}
#else
#define CALLS(X)                                                                                   \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxGetLimit) X(cuCtxSetCurrent) X(cuCtxSetLimit)      \
    X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuDriverGetVersion)       \
    X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuFuncSetCacheConfig) X(cuGetErrorString)        \
    X(cuModuleGetFunction) X(cuModuleLoadData) X(cuModuleUnload) X(cuPointerGetAttribute)          \
    X(cuPointerGetAttributes) X(cuStreamIsCapturing)
#define ADDRESS(name) extern char name##_address[] __asm__(#name);
CALLS(ADDRESS)
#define ENTRY(name) name##_address,
static void *const calls[] = {CALLS(ENTRY)};

/* How many of the calls have an address. */
int count_calls(void) {
    int count = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        count += calls[i] != NULL;
    return count;
}
#endif
