/* A program that keeps a GPU busy: work MODE SECONDS KERNEL...
 * It launches for SECONDS, or with the suffix `i` until its input ends, waits for the rest, and
 * prints how many launches it made and how many calls failed; in mode `sync`, also the median and the
 * 99th percentile of the microseconds from a launch to its end. In mode `tick`, SECONDS is the number
 * of launches of each thread, and it prints the median of the nanoseconds for one. In mode `live`,
 * SECONDS is the number of allocations that live while others are made and freed. `init` only
 * initializes; `spawn NUMBER PROGRAM...` prints how many microseconds a run of a program takes,
 * `storm` how many all of them take when started at once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef struct {
    unsigned grid[3], block[3], shared;
    handle stream, attributes;
    unsigned count;
} config;

static handle driver, context, kernels[8];
static int kernel_count;
static volatile double end;
static long failures;
static long launched;

static void *call(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}
/* Calls a function of the driver; counts it where it fails. */
#define CALL(name, ...)                                                                            \
    ({                                                                                             \
        static int (*name##_)() = NULL;                                                            \
        if (!name##_)                                                                              \
            name##_ = (int (*)())call(#name);                                                      \
        int code = name##_(__VA_ARGS__);                                                           \
        if (code) {                                                                                \
            if (__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED) < 3)                            \
                fprintf(stderr, #name ": %d\n", code);                                             \
        }                                                                                          \
        code;                                                                                      \
    })

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static handle stream(void) {
    handle made = NULL;
    CALL(cuStreamCreate, &made, 1u);
    return made;
}

static void launch(handle into) {
    long number = __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    CALL(cuLaunchKernel, kernels[number % kernel_count], 1u, 1u, 1u, 32u, 1u, 1u, 0u, into, NULL, NULL);
}

/* Launches, waiting for all of it every `each` launches. */
static void run(handle into, int each) {
    for (int i = 1; now() < end; i++) {
        launch(into);
        if (i % each == 0)
            CALL(cuStreamSynchronize, into);
    }
    CALL(cuStreamSynchronize, into);
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Launches and waits, one after the other; prints the percentiles without the first third. */
static void run_sync(handle into) {
    long count = 0, size = 1 << 16;
    double *took = malloc(size * sizeof *took);
    while (now() < end) {
        double start = now();
        launch(into);
        CALL(cuStreamSynchronize, into);
        if (count == size)
            took = realloc(took, (size *= 2) * sizeof *took);
        took[count++] = 1e6 * (now() - start);
    }
    double *late = took + count / 3;
    count -= count / 3;
    qsort(late, count, sizeof *late, by_size);
    if (count)
        printf("median %.1f p99 %.1f ", late[count / 2], late[count * 99 / 100]);
    free(took);
}

static void *worker(void *unused) {
    (void)unused;
    CALL(cuCtxSetCurrent, context);
    run(stream(), 16);
    return NULL;
}

/* Launches into the thread's own default stream. */
static void *own_worker(void *unused) {
    (void)unused;
    CALL(cuCtxSetCurrent, context);
    for (int i = 1; now() < end; i++) {
        CALL(cuLaunchKernel_ptsz, kernels[0], 1u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, NULL, NULL);
        __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
        if (i % 16 == 0)
            CALL(cuStreamSynchronize_ptsz, NULL);
    }
    CALL(cuStreamSynchronize_ptsz, NULL);
    return NULL;
}

static long ticks;

/* CPU nanoseconds of this thread. */
static double spent(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static pthread_barrier_t all_ready;

/* Launches in rounds beside other threads; gives what a launch took in the middle one of them: in
 * the fastest, the others may not have run. */
static void *ticker(void *middle) {
    CALL(cuCtxSetCurrent, context);
    handle into = stream();
    int (*make)() = (int (*)())call("cuLaunchKernel");
    const int round = 5000, rounds = ticks / round;
    double *each = calloc(rounds, sizeof *each);
    pthread_barrier_wait(&all_ready);
    for (int i = 0; i < rounds; i++) {
        double start = spent();
        for (int j = 0; j < round; j++)
            if (make(kernels[0], 1u, 1u, 1u, 32u, 1u, 1u, 0u, into, NULL, NULL))
                __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
        each[i] = (spent() - start) / round;
    }
    qsort(each, rounds, sizeof *each, by_size);
    *(double *)middle = each[rounds / 2];
    free(each);
    return NULL;
}

/* Allocates and frees beside `live` small allocations; gives the fastest time for such a pair. */
static double pairs(long live) {
    unsigned long long at;
    int (*allocate)() = (int (*)())call("cuMemAlloc_v2"), (*release)() = (int (*)())call("cuMemFree_v2");
    for (long i = 0; i < live; i++)
        if (allocate(&at, 512ul))
            failures++;
    double least = 1e9;
    for (int i = 0; i < 100; i++) {
        double start = spent();
        for (int j = 0; j < 1000; j++)
            if (allocate(&at, 512ul) || release(at))
                failures++;
        double each = (spent() - start) / 1000;
        if (each < least)
            least = each;
    }
    return least;
}

/* Runs a program again and again, or many at once; says how many microseconds that takes. */
static int spawn(int at_once, int count, char **program) {
    double *took = calloc(count, sizeof *took), start = now();
    for (int i = 0; i < count; i++) {
        double before = now();
        pid_t child = vfork();
        if (child == 0) {
            execv(program[0], program);
            _exit(127);
        }
        int status = 0;
        if (!at_once && (waitpid(child, &status, 0) != child || status))
            failures++;
        took[i] = now() - before;
    }
    for (int i = 0, status = 0; at_once && i < count; i++)
        if (wait(&status) < 0 || status)
            failures++;
    double all = now() - start;
    qsort(took, count, sizeof *took, by_size);
    printf("microseconds %.1f failures %ld\n", 1e6 * (at_once ? all : took[count / 4]), failures);
    return 0;
}

/* Captures the kernels into a graph, three launches of each. */
static handle captured(handle into, unsigned mode) {
    handle graph = NULL, exec = NULL;
    if (CALL(cuStreamBeginCapture_v2, into, mode))
        return NULL;
    for (int i = 0; i < 3 * kernel_count; i++)
        CALL(cuLaunchKernel, kernels[i % kernel_count], 1u, 1u, 1u, 32u, 1u, 1u, 0u, into, NULL, NULL);
    if (CALL(cuStreamEndCapture, into, &graph))
        return NULL;
    CALL(cuGraphInstantiateWithFlags, &exec, graph, 0ul);
    CALL(cuGraphDestroy, graph);
    return exec;
}

/* Captures graphs in the mode that forbids the most, again and again, and launches none. */
static void *capturer(void *unused) {
    (void)unused;
    CALL(cuCtxSetCurrent, context);
    handle into = stream();
    while (now() < end) {
        handle exec = captured(into, 0);
        if (exec)
            CALL(cuGraphExecDestroy, exec);
    }
    return NULL;
}

/* Writes into the counters of its own container that nothing is owed and nothing was done. */
static void *forger(void *unused) {
    (void)unused;
    static const char nothing[48];
    int file = open("/.aliquot/counters/slots", O_WRONLY);
    while (now() < end) {
        if (pwrite(file, nothing, sizeof nothing, 4096 + 64) != sizeof nothing)
            failures++;
        usleep(200);
    }
    close(file);
    return NULL;
}

/* Ends all launching with the input. */
static void *listener(void *unused) {
    char any;
    while (read(0, &any, 1) > 0)
        ;
    end = 0;
    return unused;
}

int main(int count, char **words) {
    if (count < 4)
        return 2;
    const char *mode = words[1];
    if (!strcmp(mode, "spawn") || !strcmp(mode, "storm"))
        return spawn(mode[1] == 't', atoi(words[2]), words + 3);
    handle module = NULL;
    /* A driver that creates no events. */
    if (!strcmp(mode, "unmarked"))
        setenv("GPUSIM_FAULTS", "cuEventCreate=801", 1);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!strcmp(mode, "init"))
        return !driver || CALL(cuInit, 0u);
    if (!driver || CALL(cuInit, 0u) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
        CALL(cuCtxSetCurrent, context) || CALL(cuModuleLoadData, &module, "any"))
        return 1;
    for (int i = 3; i < count; i++)
        CALL(cuModuleGetFunction, &kernels[kernel_count++], module, words[i]);
    end = now() + atof(words[2]);
    pthread_t ears;
    if (strchr(words[2], 'i'))
        pthread_create(&ears, NULL, listener, NULL);
    handle own = stream();
    pthread_t threads[4];
    if (!strncmp(mode, "tick", 4)) {
        int count = mode[4] == '4' ? 4 : 1;
        double middle[4], sum = 0;
        ticks = atol(words[2]);
        pthread_barrier_init(&all_ready, NULL, count);
        for (int i = 0; i < count; i++)
            pthread_create(&threads[i], NULL, ticker, &middle[i]);
        for (int i = 0; i < count; i++) {
            pthread_join(threads[i], NULL);
            sum += middle[i];
        }
        printf("nanoseconds %.1f failures %ld\n", sum / count, failures);
        return 0;
    }
    if (!strcmp(mode, "live")) {
        double each = pairs(atol(words[2]));
        printf("nanoseconds %.1f failures %ld\n", each, failures);
        return 0;
    }
    if (!strcmp(mode, "plain") || !strcmp(mode, "unmarked")) {
        run(own, 64);
    } else if (!strcmp(mode, "sync")) {
        run_sync(own);
    } else if (!strcmp(mode, "bursts")) {
        /* A fifth of a second of work, three fifths of rest. */
        while (now() < end) {
            for (double rest = now() + 0.2; now() < rest; launch(own))
                CALL(cuStreamSynchronize, own);
            usleep(600000);
        }
    } else if (!strcmp(mode, "forge")) {
        pthread_create(&threads[0], NULL, forger, NULL);
        run(own, 64);
        pthread_join(threads[0], NULL);
    } else if (!strcmp(mode, "streams")) {
        handle streams[3] = {own, stream(), stream()};
        for (int i = 0; now() < end; i++)
            launch(streams[i % 3]);
        CALL(cuCtxSynchronize);
    } else if (!strcmp(mode, "threads") || !strcmp(mode, "ownthreads")) {
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, mode[0] == 't' ? worker : own_worker, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
    } else if (!strcmp(mode, "graphs")) {
        handle exec = captured(own, 1);
        for (int i = 1; exec && now() < end; i++, launched++) {
            CALL(cuGraphLaunch, exec, own);
            if (i % 8 == 0)
                CALL(cuStreamSynchronize, own);
        }
        CALL(cuStreamSynchronize, own);
    } else if (!strcmp(mode, "cooperative")) {
        for (; now() < end; launched++)
            CALL(cuLaunchCooperativeKernel, kernels[0], 1u, 1u, 1u, 32u, 1u, 1u, 0u, own, NULL);
        CALL(cuStreamSynchronize, own);
    } else if (!strcmp(mode, "extended")) {
        config wanted = {{1, 1, 1}, {32, 1, 1}, 0, own, NULL, 0};
        for (; now() < end; launched++)
            CALL(cuLaunchKernelEx, &wanted, kernels[0], NULL, NULL);
        CALL(cuStreamSynchronize, own);
    } else if (!strcmp(mode, "thread")) {
        /* Stream 0 of calls for which that is the thread's own. */
        for (; now() < end; launched++)
            CALL(cuLaunchKernel_ptsz, kernels[0], 1u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, NULL, NULL);
        CALL(cuCtxSynchronize);
    } else if (!strcmp(mode, "legacy")) {
        /* Beside a capture of a stream that the legacy one does not wait for. */
        handle graph = NULL;
        CALL(cuStreamBeginCapture_v2, own, 2u);
        while (now() < end)
            launch(NULL);
        CALL(cuStreamEndCapture, own, &graph);
        CALL(cuCtxSynchronize);
    } else if (!strcmp(mode, "fills") || !strcmp(mode, "copies")) {
        /* Of 128 MiB within the GPU, by every call. */
        const size_t bytes = 128ul << 20, rows = 64, row = bytes / rows;
        const int fills = mode[0] == 'f';
        unsigned long long to = 0, from = 0;
        CALL(cuMemAlloc_v2, &to, bytes);
        CALL(cuMemAlloc_v2, &from, bytes);
        for (; now() < end; launched++) {
            switch (launched % 8 + (fills ? 0 : 8)) {
            case 0: CALL(cuMemsetD8_v2, to, 1, bytes); break;
            case 1: CALL(cuMemsetD16_v2, to, 1, bytes / 2); break;
            case 2: CALL(cuMemsetD32_v2, to, 1u, bytes / 4); break;
            case 3: CALL(cuMemsetD8Async, to, 1, bytes, own); break;
            case 4: CALL(cuMemsetD32Async, to, 1u, bytes / 4, own); break;
            case 5: CALL(cuMemsetD32Async_ptsz, to, 1u, bytes / 4, NULL); break;
            case 6: CALL(cuMemsetD2D8_v2, to, row, 1, row, rows); break;
            case 7: CALL(cuMemsetD2D32_v2, to, row, 1u, row / 4, rows); break;
            case 8: CALL(cuMemcpyDtoD_v2, to, from, bytes); break;
            case 9: CALL(cuMemcpyDtoDAsync_v2, to, from, bytes, own); break;
            case 10: CALL(cuMemcpy, to, from, bytes); break;
            case 11: CALL(cuMemcpyAsync, to, from, bytes, own); break;
            case 12: CALL(cuMemcpyAsync_ptsz, to, from, bytes, own); break;
            case 13: CALL(cuMemcpy_ptds, to, from, bytes); break;
            case 14: CALL(cuMemcpyDtoD_v2_ptds, to, from, bytes); break;
            case 15: CALL(cuMemcpyDtoDAsync_v2_ptsz, to, from, bytes, NULL); break;
            }
        }
        CALL(cuCtxSynchronize);
    } else if (!strcmp(mode, "stuck")) {
        /* Behind a word that nobody writes. */
        handle blocked = stream();
        unsigned long long word = 0;
        CALL(cuMemAlloc_v2, &word, 4ul);
        CALL(cuMemsetD32_v2, word, 0u, 1ul);
        handle last = kernels[--kernel_count];
        for (int i = 0; i < 8; i++)
            launch(own);
        CALL(cuStreamSynchronize, own);
        CALL(cuStreamWaitValue32_v2, blocked, word, 7u, 1u);
        for (int i = 0; i < 40; i++)
            launch(blocked);
        kernels[0] = last;
        run(own, 64);
    } else if (!strcmp(mode, "bare")) {
        /* Kernels that belong to no context, of a thread that has none. */
        handle library = NULL;
        CALL(cuLibraryLoadData, &library, "any", NULL, NULL, 0u, NULL, NULL, 0u);
        for (int i = 0; i < kernel_count; i++)
            CALL(cuLibraryGetKernel, &kernels[i], library, words[i + 3]);
        CALL(cuCtxSetCurrent, NULL);
        run(own, 64);
    } else if (!strcmp(mode, "capture")) {
        pthread_create(&threads[0], NULL, capturer, NULL);
        /* Nothing here that a capture forbids: only launches. */
        while (now() < end)
            launch(own);
        pthread_join(threads[0], NULL);
        CALL(cuStreamSynchronize, own);
    } else {
        return 2;
    }
    printf("launches %ld failures %ld\n", launched, failures);
    return 0;
}
