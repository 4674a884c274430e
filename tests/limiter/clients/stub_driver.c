/* A driver's stub, such as WSL's libcuda.so.1: each call of calls.h looks for the function of its
 * name in the driver behind it, whose path is in DRIVER_BEHIND, and calls that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "calls.h"

static void *behind(const char *name) {
    static void *driver;
    if (!driver)
        driver = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}

/* No call has more words; those beyond its own are not read. */
#define WORDS(X) X a, X b, X c, X d, X e, X f, X g, X h, X i, X j, X k, X l
#define DEFINE(number, name, count)                                                                \
    long name(WORDS(long)) {                                                                       \
        static long (*next)(WORDS(long));                                                          \
        if (!next)                                                                                 \
            next = behind(#name);                                                                  \
        return next ? next(WORDS()) : 500;                                                         \
    }
CALLS(DEFINE)
