/* A program that finds the driver in the way that its argument names, and prints whether an
 * allocation of 3 TiB is refused by the limit (2) while an unhooked symbol of the driver is found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long pointer;
extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(pointer *, size_t);
extern int cuDriverGetVersion(int *);

#ifdef OWN_DLSYM
/* As profilers and overlays do. */
void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*next)(void *, const char *);
    if (!next)
        next = dlvsym(dlopen("libc.so.6", RTLD_NOW), "dlsym", "GLIBC_2.2.5");
    return next(handle, name);
}
#endif

static int allocate(int (*init)(unsigned), int (*get)(int *, int), int (*retain)(void **, int),
                    int (*current)(void *), int (*alloc)(pointer *, size_t), size_t mib) {
    int device, code;
    void *context;
    pointer at;
    if ((code = init(0)) || (code = get(&device, 0)) || (code = retain(&context, device)) ||
        (code = current(context)))
        return 1000 + code;
    return alloc(&at, mib << 20);
}

static int by_handle(void *library, size_t mib) {
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    /* A call that no limiter stands in for. */
    int (*version)(int *) = dlsym(library, "cuDriverGetVersion");
    int number = 0;
    if (!version || version(&number) || number < 1000)
        return -2;
    return allocate(dlsym(library, "cuInit"), dlsym(library, "cuDeviceGet"),
                    dlsym(library, "cuDevicePrimaryCtxRetain"), dlsym(library, "cuCtxSetCurrent"),
                    dlsym(library, "cuMemAlloc_v2"), mib);
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
    size_t mib = 2521;
    int code = -3;
#ifdef LINKED
    if (!strcmp(way, "linked"))
        code = allocate(cuInit, cuDeviceGet, cuDevicePrimaryCtxRetain, cuCtxSetCurrent,
                        cuMemAlloc_v2, mib);
#else
    if (!strcmp(way, "now"))
        code = by_handle(dlopen("libcuda.so.1", RTLD_NOW), mib);
    if (!strcmp(way, "lazy"))
        code = by_handle(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL), mib);
    if (!strcmp(way, "global") && dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))
        code = by_handle(RTLD_DEFAULT ? RTLD_DEFAULT : dlopen(NULL, RTLD_NOW), mib);
    if (!strcmp(way, "deep"))
        code = by_handle(dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND), mib);
    if (!strcmp(way, "namespace"))
        code = by_handle(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW), mib);
    if (!strcmp(way, "plugin")) {
        /* A library opened so that its own needs come first: it is linked against the driver, or
         * opens it. */
        void *plugin = dlopen(words[2], RTLD_NOW | RTLD_DEEPBIND);
        int (*call)(size_t) = plugin ? dlsym(plugin, "in_plugin") : NULL;
        code = call ? call(mib) : -4;
    }
#endif
    printf("%s: %d\n", way, code);
    return 0;
}

int in_plugin(size_t mib) {
#ifdef LINKED
    return allocate(cuInit, cuDeviceGet, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc_v2, mib);
#else
    return by_handle(dlopen("libcuda.so.1", RTLD_NOW), mib);
#endif
}
