// A driver library with only the calls that the inventory needs.
#include <stdint.h>
#include <string.h>

struct memory {
    uint64_t total, free, used;
};

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    strncpy(version, "470.57.02", length);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(uintptr_t)(index + 1);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)(uintptr_t)(uuid[4] - 'a' + 1);
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, device == (void *)1 ? "GPU-a" : "GPU-b", length);
    return 0;
}

// The second GPU has no name: it cannot be advertised.
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    if (device != (void *)1)
        return 999;
    strncpy(name, "Tesla V100", length);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    (void)device;
    memory->total = 16384ull << 20;
    memory->free = memory->used = 8192ull << 20;
    return 0;
}

// Drivers from 525 to 535 have only this call for the fabric.
#ifdef FABRIC_STATE
struct fabric {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
};

int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric *fabric) {
    (void)device;
    memset(fabric, 0, sizeof *fabric);
    fabric->state = FABRIC_STATE;
    return 0;
}
#endif
