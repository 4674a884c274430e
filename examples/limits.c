/* Whether the limits of this container hold: fills its first GPU's memory to the last byte, keeps the
 * GPU busy for some seconds, and compares what it got with the limits in its environment.
 *   cc -O1 -o limits examples/limits.c -ldl
 * Needs only NVIDIA's driver. Prints a line for each limit; ends with 1 if one does not hold. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
enum { OUT_OF_MEMORY = 2, DISABLE_BLOCKING = 1 };
/* Points of a percent by which the measured compute may differ. */
static const double TOLERANCE = 2;
static const double WARM_UP = 0.4, WINDOW = 1.5;
/* Only a shortage is measured again: a busy machine may give this program no processor. */
enum { WINDOWS = 3 };

/* About a millisecond of work on a GPU, however often it is interrupted; the simulated driver takes
 * the time from the name. */
#define KERNEL "work_us_1000"
#define STEP "fma.rn.f32 %value, %value, 0f3F7FBE77, 0f3F000000;\n"
static const char module_text[] =
    ".version 6.3\n.target sm_60\n.address_size 64\n"
    ".visible .entry " KERNEL "(.param .u64 out)\n{\n"
    ".reg .u64 %out;\n.reg .u32 %done;\n.reg .f32 %value;\n.reg .pred %more, %none;\n"
    "ld.param.u64 %out, [out];\nmov.u32 %done, 0;\nmov.f32 %value, 0f3F800000;\n"
    "AGAIN:\n" STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP
    "add.u32 %done, %done, 1;\nsetp.lt.u32 %more, %done, 20000;\n@%more bra AGAIN;\n"
    "setp.eq.u64 %none, %out, 0;\n@%none bra END;\n"
    "cvta.to.global.u64 %out, %out;\nst.global.f32 [%out], %value;\nEND:\nret;\n}\n";

typedef void *handle;
static handle driver, stream, kernel;
static int failed;

static void give_up(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(2);
}

/* What a call of the driver returns. */
#define RESULT(name, ...)                                                                          \
    ({                                                                                             \
        int (*call_)() = (int (*)())dlsym(driver, #name);                                          \
        if (!call_)                                                                                \
            give_up("libcuda.so.1 has no " #name);                                                 \
        call_(__VA_ARGS__);                                                                        \
    })
#define CALL(name, ...)                                                                            \
    ({                                                                                             \
        int code_ = RESULT(name, __VA_ARGS__);                                                     \
        if (code_)                                                                                 \
            give_up(error_name(#name, code_));                                                     \
    })

static const char *error_name(const char *call, int code) {
    static char text[120];
    const char *name = "an unknown error";
    RESULT(cuGetErrorName, code, &name);
    snprintf(text, sizeof text, "%s%s%s", call, *call ? ": " : "", name);
    return text;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A limit of the environment; 0: there is none. */
static unsigned long limit(const char *name) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : 0;
}

static void expect(int holds, const char *expected) {
    if (!holds) {
        failed = 1;
        printf("  this limit does not hold, expected: %s\n", expected);
    }
}

static void launch(void) {
    unsigned long long nowhere = 0;
    void *parameters[] = {&nowhere};
    CALL(cuLaunchKernel, kernel, 1u, 1u, 1u, 32u, 1u, 1u, 0u, stream, parameters, NULL);
}

static void check_memory(unsigned long expected) {
    size_t total = 0, free = 0, all = 0;
    CALL(cuDeviceTotalMem_v2, &total, 0);
    CALL(cuMemGetInfo_v2, &free, &all);
    const size_t context = all - free;
    printf("memory: limit %lu MiB; the GPU has %zu MiB in all\n", expected, total / MIB);
    expect(total == all && total / MIB == expected, "as many as the limit");

    unsigned long long address;
    size_t allocated = 0;
    while (free > 0) {
        CALL(cuMemAlloc_v2, &address, free);
        allocated += free;
        CALL(cuMemGetInfo_v2, &free, &all);
    }
    const int code = RESULT(cuMemAlloc_v2, &address, 1ul);
    printf("memory: %zu MiB allocated beside %zu MiB of the context; one byte more: %s\n",
           allocated / MIB, context / MIB, code ? error_name("", code) : "allocated");
    expect(code == OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
}

/* Milliseconds that a launch takes when nothing interrupts it. */
static double launch_time(void) {
    handle first, second;
    float found, least = 1e9;
    CALL(cuEventCreate, &first, 0u);
    CALL(cuEventCreate, &second, 0u);
    for (int i = 0; i < 10; i++) {
        /* The second begins when the first ends, so that nothing of the host is in between. */
        launch();
        CALL(cuEventRecord, first, stream);
        launch();
        CALL(cuEventRecord, second, stream);
        CALL(cuStreamSynchronize, stream);
        CALL(cuEventElapsedTime, &found, first, second);
        least = found < least ? found : least;
        /* So that no launch waits for its share. */
        usleep(20000);
    }
    return least;
}

/* Percent of the GPU's time in which launches of this program ran. */
static double busy(double seconds, double each) {
    long count = 0;
    const double start = now();
    while (now() < start + seconds) {
        launch();
        if (++count % 8 == 0)
            CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamSynchronize, stream);
    return 100 * count * each / 1000 / (now() - start);
}

static void check_compute(unsigned long expected) {
    const double each = launch_time();
    double percent = 0;
    busy(WARM_UP, each);
    for (int i = 0; i < WINDOWS && percent < expected - TOLERANCE; i++)
        percent = busy(WINDOW, each);
    printf("compute: limit %lu %%; got %.1f %% of the GPU\n", expected, percent);
    expect(percent >= expected - TOLERANCE && percent <= expected + TOLERANCE, "the limit, 2 points more or less");
}

int main(void) {
    const unsigned long memory = limit("CUDA_DEVICE_MEMORY_LIMIT_0"), compute = limit("CUDA_DEVICE_SM_LIMIT");
    handle context, module;
    setvbuf(stdout, NULL, _IOLBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        give_up(dlerror());
    CALL(cuInit, 0u);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, module_text);
    CALL(cuModuleGetFunction, &kernel, module, KERNEL);
    CALL(cuStreamCreate, &stream, DISABLE_BLOCKING);
    /* A context is complete after its first launch. */
    launch();
    CALL(cuStreamSynchronize, stream);
    if (memory)
        check_memory(memory);
    if (compute)
        check_compute(compute);
    if (!memory || !compute)
        printf("no limit of %s\n", memory ? "compute" : compute ? "memory" : "memory and compute");
    return failed;
}
