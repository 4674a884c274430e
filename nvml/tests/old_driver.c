// A driver library with only the calls that the inventory needs.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct memory {
    uint64_t total, free, used;
};

// With ANSWER, a file of that name holds the error with which a handle is refused. What was lost once
// stays lost until NVML is initialised again.
static int lost;

static int refusal(void) {
    int code = 0;
#ifdef ANSWER
    FILE *file = fopen(ANSWER, "r");
    if (file && fscanf(file, "%d", &code) != 1)
        code = 0;
    if (file)
        fclose(file);
    lost |= code == 15;
#endif
    return lost ? 15 : code;
}

int nvmlInit_v2(void) {
    lost = 0;
    return 0;
}

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
    return refusal();
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)(uintptr_t)(uuid[4] - 'a' + 1);
    return refusal();
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, device == (void *)1 ? "GPU-a" : "GPU-b", length);
    return 0;
}

// The second GPU has no name: it cannot be advertised. With EVENTS, it only refuses to report any.
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
#ifndef EVENTS
    if (device != (void *)1)
        return 3;
#endif
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

#ifdef EVENTS
struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static int reported;

int nvmlEventSetCreate(void **set) {
    *set = &reported;
    return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)types, (void)set;
    return device == (void *)1 ? 0 : 999;
}

// One XID of the first GPU.
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout) {
    (void)set, (void)timeout;
    if (reported)
        return 10;
    reported = 1;
    *event = (struct event){(void *)1, 8, 79, -1u, -1u};
    return 0;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    return 0;
}
#endif
