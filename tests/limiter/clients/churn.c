/* Allocates and frees memory of every kind at random, in several threads, as fast as it can.
 *
 *   churn THREADS ROUNDS SEED COUNT   prints `ready`; continues with each further line of input: half
 *                                     of the rounds, `half`; the rest, `full`; frees all, `empty`.
 *   churn free ROUNDS SEED            one thread, which queries after each call what is free, and
 *                                     prints how often that rose without a free.
 *
 * COUNT is a file in which all processes count their rounds. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long pointer;
typedef struct { size_t width, height; unsigned format, channels; } flat;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } solid;
typedef struct { int type, handles, place, device; void *win32; unsigned char more[64]; } place;

extern int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *), cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *);
extern int cuCtxSynchronize(void), cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemAlloc_v2(pointer *, size_t), cuMemFree_v2(pointer);
extern int cuMemAllocPitch_v2(pointer *, size_t *, size_t, size_t, unsigned);
extern int cuMemAllocManaged(pointer *, size_t, unsigned), cuMemsetD8_v2(pointer, unsigned char, size_t);
extern int cuArrayCreate_v2(void **, const flat *), cuArrayDestroy(void *);
extern int cuMipmappedArrayCreate(void **, const solid *, unsigned), cuMipmappedArrayDestroy(void *);
extern int cuMemCreate(pointer *, size_t, const place *, unsigned long long), cuMemRelease(pointer);
extern int cuMemAddressReserve(pointer *, size_t, size_t, pointer, unsigned long long);
extern int cuMemAddressFree(pointer, size_t), cuMemUnmap(pointer, size_t);
extern int cuMemMap(pointer, size_t, size_t, pointer, unsigned long long);
extern int cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *);
extern int cuMemAllocAsync(pointer *, size_t, void *), cuMemFreeAsync(pointer, void *);
extern int cuMemPoolCreate(void **, const place *), cuMemAllocFromPoolAsync(pointer *, size_t, void *, void *);
extern int cuDeviceGetDefaultMemPool(void **, int), cuMemPoolTrimTo(void *, size_t);

enum kind { PLAIN, PITCHED, MANAGED, ARRAY, MIPMAPPED, PHYSICAL, ORDERED, POOLED, CONTEXT, KINDS };
enum { MOST = 48, MIB = 1 << 20, OUT_OF_MEMORY = 2 };

typedef struct { enum kind kind; pointer at, handle; size_t size; } thing;
typedef struct {
    uint64_t state;
    void *stream, *pool;
    thing live[MOST];
    int count;
    long refused;
} worker;

static void *primary, *default_pool;
static int device;
static uint64_t *counter;

static void must(int code, const char *what) {
    if (code == 0)
        return;
    printf("%s: %d\n", what, code);
    fflush(stdout);
    _exit(1);
}

static uint64_t dice(worker *w) {
    w->state ^= w->state << 13;
    w->state ^= w->state >> 7;
    w->state ^= w->state << 17;
    return w->state;
}

static void begin(worker *w, uint64_t seed) {
    place on = {.type = 1, .place = 1, .device = device};
    memset(w, 0, sizeof *w);
    w->state = seed * 0x9e3779b97f4a7c15u | 1;
    must(cuCtxSetCurrent(primary), "current");
    must(cuStreamCreate(&w->stream, 1), "stream");
    must(cuMemPoolCreate(&w->pool, &on), "pool");
}

static int make(worker *w, thing *t) {
    static const size_t sizes[] = {512, 4096, 65536, MIB, 2 * MIB, 3 * MIB + 1, 10 * MIB, 40 * MIB + 1, 150 * MIB};
    place on = {.type = 1, .place = 1, .device = device};
    size_t pitch;
    int code;
    /* A context is as large as many allocations: it is seldom made. */
    t->kind = dice(w) % 400 == 0 ? CONTEXT : dice(w) % CONTEXT;
    t->size = sizes[dice(w) % (sizeof sizes / sizeof *sizes)];
    switch (t->kind) {
    case PLAIN:
        return cuMemAlloc_v2(&t->at, t->size);
    case PITCHED:
        return cuMemAllocPitch_v2(&t->at, &pitch, 1 + dice(w) % 5000, 1 + dice(w) % 3000, 4);
    case MANAGED:
        /* Its pages are on the GPU from their first use. */
        if ((code = cuMemAllocManaged(&t->at, t->size, 1)) == 0)
            for (pitch = 0; pitch < t->size; pitch += 2 * MIB)
                must(cuMemsetD8_v2(t->at + pitch, 1, 1), "memset");
        return code;
    case ARRAY: {
        flat shape = {1 + dice(w) % 2000, 1 + dice(w) % 2000, 0x20, 4};
        return cuArrayCreate_v2((void **)&t->at, &shape);
    }
    case MIPMAPPED: {
        solid shape = {256, 256, 0, 0x20, 4, 0};
        return cuMipmappedArrayCreate((void **)&t->at, &shape, 4);
    }
    case PHYSICAL:
        t->size = (t->size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        if ((code = cuMemCreate(&t->handle, t->size, &on, 0)))
            return code;
        must(cuMemAddressReserve(&t->at, t->size, 0, 0, 0), "reserve");
        must(cuMemMap(t->at, t->size, 0, t->handle, 0), "map");
        if (dice(w) % 2) /* The mapping keeps it. */
            must(cuMemRelease(t->handle), "release"), t->handle = 0;
        return 0;
    case ORDERED:
        return cuMemAllocAsync(&t->at, t->size, w->stream);
    case POOLED:
        return cuMemAllocFromPoolAsync(&t->at, t->size, w->pool, w->stream);
    default:
        code = cuCtxCreate_v2((void **)&t->at, 0, device);
        must(cuCtxSetCurrent(primary), "current again");
        return code;
    }
}

static void end(worker *w, thing *t) {
    switch (t->kind) {
    case ARRAY:
        return must(cuArrayDestroy((void *)t->at), "array's end");
    case MIPMAPPED:
        return must(cuMipmappedArrayDestroy((void *)t->at), "mipmapped array's end");
    case PHYSICAL:
        if (t->handle)
            must(cuMemRelease(t->handle), "release");
        must(cuMemUnmap(t->at, t->size), "unmap");
        return must(cuMemAddressFree(t->at, t->size), "address's end");
    case ORDERED:
    case POOLED:
        return must(cuMemFreeAsync(t->at, w->stream), "ordered free");
    case CONTEXT:
        must(cuCtxDestroy_v2((void *)t->at), "context's end");
        return must(cuCtxSetCurrent(primary), "current after");
    default:
        return must(cuMemFree_v2(t->at), "free");
    }
}

/* One call or a few that belong together; whether it may have freed something. */
static int step(worker *w) {
    thing t = {0};
    int code;
    if (w->count && (w->count == MOST || dice(w) % 2)) {
        int which = dice(w) % w->count;
        end(w, &w->live[which]);
        w->live[which] = w->live[--w->count];
        if (dice(w) % 8 == 0)
            must(cuStreamSynchronize(w->stream), "synchronize");
        return 1;
    }
    code = make(w, &t);
    if (code == 0)
        w->live[w->count++] = t;
    else if (code == OUT_OF_MEMORY)
        w->refused++;
    else
        must(code, "allocation");
    return 0;
}

static void settle(worker *w) {
    must(cuStreamSynchronize(w->stream), "synchronize");
    must(cuMemPoolTrimTo(w->pool, 0), "trim");
    must(cuMemPoolTrimTo(default_pool, 0), "trim the default pool");
}

static void start(void) {
    int code = 0, tries;
    must(cuInit(0), "init");
    must(cuDeviceGet(&device, 0), "device");
    /* As soon as the others leave room for a context. */
    for (tries = 0; tries < 60000 && (code = cuDevicePrimaryCtxRetain(&primary, device)) == OUT_OF_MEMORY; tries++)
        usleep(1000);
    must(code, "context");
    must(cuCtxSetCurrent(primary), "current");
    must(cuDeviceGetDefaultMemPool(&default_pool, device), "default pool");
}

static pthread_barrier_t meeting;
static long rounds;
static unsigned seed;
static worker *workers;

static void *work(void *number) {
    worker *w = &workers[(long)number];
    int part;
    begin(w, seed * 1000 + 1 + (long)number);
    for (part = 0; part < 2; part++) {
        long i;
        for (i = 0; i < rounds / 2; i++) {
            step(w);
            __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        }
        settle(w);
        pthread_barrier_wait(&meeting);
        pthread_barrier_wait(&meeting);
    }
    while (w->count)
        end(w, &w->live[--w->count]);
    settle(w);
    pthread_barrier_wait(&meeting);
    return NULL;
}

static void say(const char *what) {
    char line[16];
    printf("%s\n", what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        _exit(2);
}

static void ask(size_t *free_now) {
    size_t total;
    must(cuMemGetInfo_v2(free_now, &total), "info");
}

static int watch(void) {
    static worker w;
    size_t before, after;
    long i, rose = 0, fell = 0;
    start();
    begin(&w, seed);
    ask(&before);
    for (i = 0; i < rounds; i++) {
        int freed = step(&w);
        if (freed)
            must(cuStreamSynchronize(w.stream), "synchronize");
        ask(&after);
        rose += !freed && after > before;
        fell += freed && after < before;
        before = after;
    }
    printf("rose %ld fell %ld refused %d\n", rose, fell, w.refused > 0);
    return 0;
}

int main(int count, char **words) {
    pthread_t threads[64];
    long refused = 0, number, i;
    int file;
    char line[64];
    if (count < 4)
        return 3;
    rounds = atol(words[2]);
    seed = atoi(words[3]);
    if (!strcmp(words[1], "free"))
        return watch();
    number = atol(words[1]);
    file = open(words[4], O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, 8))
        return 4;
    counter = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    workers = calloc(number, sizeof *workers);
    pthread_barrier_init(&meeting, NULL, number + 1);
    start();
    say("ready");
    for (i = 0; i < number; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_barrier_wait(&meeting);
    say("half");
    pthread_barrier_wait(&meeting);
    pthread_barrier_wait(&meeting);
    say("full");
    pthread_barrier_wait(&meeting);
    pthread_barrier_wait(&meeting);
    for (i = 0; i < number; i++) {
        pthread_join(threads[i], NULL);
        refused += workers[i].refused;
    }
    snprintf(line, sizeof line, "empty %ld", refused);
    say(line);
    return 0;
}
