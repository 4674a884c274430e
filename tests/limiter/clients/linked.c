/* A program that is linked against both libraries of the driver. It prints what an allocation of
 * 2900 MiB and then one of 2000 MiB return, and the MiB that NVML reports; in a share of 3000 MiB
 * there is a context, too, and only the second one fits. */
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long address;
extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(address *, size_t);
extern int cuMemFree_v2(address);

static int allocate(size_t mib) {
    int device, code;
    void *context;
    address at;
    if ((code = cuInit(0)) || (code = cuDeviceGet(&device, 0)) ||
        (code = cuDevicePrimaryCtxRetain(&context, device)) || (code = cuCtxSetCurrent(context)))
        return 1000 + code;
    code = cuMemAlloc_v2(&at, mib << 20);
    return code ? code : cuMemFree_v2(at);
}

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
