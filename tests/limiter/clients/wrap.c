/* A library that wraps functions of libc, as profilers and overlays do: -DWRAP_... says which. It
 * looks for libc's own at the first call, and calls dlsym before the program starts. */
#define _GNU_SOURCE
#include <dlfcn.h>

#ifdef WRAP_DLOPEN
void *dlopen(const char *file, int mode) {
    static void *(*next)(const char *, int);
    if (!next)
        next = dlsym(RTLD_NEXT, "dlopen");
    return next(file, mode);
}
#endif

#ifdef WRAP_DLVSYM
void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
    static void *(*next)(void *, const char *, const char *);
    if (!next)
        next = dlsym(RTLD_NEXT, "dlvsym");
    return next(handle, name, version);
}
#endif

#ifdef WRAP_DLSYM
void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*next)(void *, const char *);
    if (!next)
        next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return next(handle, name);
}
#endif

__attribute__((constructor)) static void start(void) { dlsym(RTLD_DEFAULT, "getpid"); }
