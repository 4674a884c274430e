/* Whether the limits of this container hold: fills its first GPU's memory until not one byte more is
 * given, keeps the GPU busy for some seconds, and compares what it got with the limits in its environment.
 *   cc -O1 -o limits limits.c -ldl
 * Needs only NVIDIA's driver. Prints a line for each limit. Ends with 0 if all hold, 1 if one does not,
 * 2 if it could not be tested. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
enum { OUT_OF_MEMORY = 2, DISABLE_BLOCKING = 1 };
/* A driver takes memory in blocks of this size; what is left may be less than one. */
static const size_t BLOCK = 2 * MIB;
/* The most that may be in use before the first allocation. A context takes 200 to 700 MiB. */
static const size_t CONTEXT = 1024 * MIB;
/* Points of a percent by which the measured compute may differ. */
static const double TOLERANCE = 2;
/* Seconds. */
static const double WARM_UP = 0.4, WINDOW = 1.5;
/* Percent of a window in which this program waited for a processor, so that its launches came late. Only
 * such a window is measured again, and only when it got too little. */
static const double STARVED = 3;
enum { WINDOWS = 6 };

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
typedef unsigned long long address;
static handle driver, stream, kernel;
static int failed;

static void give_up(const char *what) {
    fprintf(stderr, "not tested: %s\n", what);
    exit(2);
}

/* The driver's functions, by their types. */
#define DRIVER(function)                                                                           \
    function(cuInit, (unsigned))                                                                   \
    function(cuGetErrorName, (int, const char **))                                                 \
    function(cuDevicePrimaryCtxRetain, (handle *, int))                                            \
    function(cuCtxSetCurrent, (handle))                                                            \
    function(cuModuleLoadData, (handle *, const void *))                                           \
    function(cuModuleGetFunction, (handle *, handle, const char *))                                \
    function(cuStreamCreate, (handle *, unsigned))                                                 \
    function(cuStreamSynchronize, (handle))                                                        \
    function(cuEventCreate, (handle *, unsigned))                                                  \
    function(cuEventRecord, (handle, handle))                                                      \
    function(cuEventElapsedTime, (float *, handle, handle))                                        \
    function(cuDeviceTotalMem_v2, (size_t *, int))                                                 \
    function(cuMemGetInfo_v2, (size_t *, size_t *))                                                \
    function(cuMemAlloc_v2, (address *, size_t))                                                   \
    function(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
                              unsigned, handle, void **, void **))
#define DECLARE(name, parameters) static int(*name) parameters;
DRIVER(DECLARE)

static void load_driver(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        give_up(dlerror());
#define LOAD(name, parameters)                                                                     \
    name = (int(*) parameters)dlsym(driver, #name);                                                \
    if (!name)                                                                                     \
        give_up("libcuda.so.1 has no " #name);
    DRIVER(LOAD)
}

static const char *error_name(int code) {
    const char *name = NULL;
    cuGetErrorName(code, &name);
    return name ? name : "an unknown error";
}

static void check(const char *call, int code) {
    char text[120];
    if (!code)
        return;
    snprintf(text, sizeof text, "%s: %s", call, error_name(code));
    give_up(text);
}
#define CALL(name, ...) check(#name, name(__VA_ARGS__))

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Seconds for which this program was ready to run and had no processor. */
static double starved(void) {
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (file) {
        if (fscanf(file, "%llu %llu", &ran, &waited) != 2)
            waited = 0;
        fclose(file);
    }
    return waited / 1e9;
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
    address nowhere = 0;
    void *parameters[] = {&nowhere};
    CALL(cuLaunchKernel, kernel, 1u, 1u, 1u, 32u, 1u, 1u, 0u, stream, parameters, NULL);
}

static void check_memory(size_t expected) {
    size_t total = 0, free = 0, all = 0;
    CALL(cuDeviceTotalMem_v2, &total, 0);
    CALL(cuMemGetInfo_v2, &free, &all);
    const size_t before = all - free;
    printf("memory: limit %zu MiB; the GPU has %zu MiB in all\n", expected / MIB, total / MIB);
    expect(total == expected && all == expected, "as many as the limit");

    /* Smaller and smaller pieces, until one byte is refused. */
    address piece;
    size_t allocated = 0, size = free;
    int code = 0;
    while (size > 0 && before + allocated <= expected) {
        code = cuMemAlloc_v2(&piece, size);
        if (code == OUT_OF_MEMORY)
            size /= 2;
        else
            check("cuMemAlloc_v2", code), allocated += size;
    }
    printf("memory: got %zu MiB beside %zu MiB in use before (the context); one byte more: %s\n",
           allocated / MIB, before / MIB, code ? error_name(code) : "allocated");
    expect(before + allocated <= expected, "no more than the limit");
    expect(before + allocated + BLOCK > expected, "all of the limit");
    expect(before <= CONTEXT, "at most 1024 MiB before the first allocation; does another process of the container use the GPU?");
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
    const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");
    const double each = launch_time();
    double percent = 0;
    busy(WARM_UP, each);
    for (int i = 0;; i++) {
        const double start = now(), before = starved();
        percent = busy(WINDOW, each);
        const double waited = 100 * (starved() - before) / (now() - start);
        if (percent >= expected - TOLERANCE || waited < STARVED)
            break;
        if (i == WINDOWS)
            give_up("compute: the machine gave this program no processor when it needed one");
        printf("compute: measured again, because no processor was free for %.0f %% of the time\n", waited);
    }
    printf("compute: share %lu %%; got %.1f %% of the GPU\n", expected, percent);
    expect(percent >= expected - TOLERANCE, "at least the share");
    if (percent <= expected + TOLERANCE)
        return;
    if (policy && !strcmp(policy, "force"))
        expect(0, "no more than the share, by GPU_CORE_UTILIZATION_POLICY=force");
    else
        printf("  more than the share: compute that others leave idle is lent. To refuse it: "
               "GPU_CORE_UTILIZATION_POLICY=force\n");
}

int main(void) {
    const unsigned long memory = limit("CUDA_DEVICE_MEMORY_LIMIT_0"), compute = limit("CUDA_DEVICE_SM_LIMIT");
    handle context, module;
    setvbuf(stdout, NULL, _IOLBF, 0);
    load_driver();
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
        check_memory(memory * MIB);
    if (compute)
        check_compute(compute);
    if (!memory || !compute)
        printf("no limit of %s\n", memory ? "compute" : compute ? "memory" : "memory and compute");
    return failed;
}
