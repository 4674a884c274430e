/* A driver that has every call of calls.h, each of which returns what it was called with, and,
 * if compiled with LOOK_UPS, cuGetProcAddress. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "every.h"

#define DEFINE(number, name, count)                                                                \
    int name(ARGUMENTS) { return answer(number, count, a, b, c, d, e, f, g, h, x, y); }
CALLS(DEFINE)

#define ROW(number, name, count) {#name, (void *)name},
static const struct {
    const char *name;
    void *address;
} table[] = {CALLS(ROW){NULL, NULL}};

#ifdef LOOK_UPS
/* Versions and flags are in the name that is asked for here. */
static int look_up(const char *name, void **address) {
    /* Where this driver has a ninth form of a call, its name means that. */
    char newest[96];
    int length = snprintf(newest, sizeof newest, "%s_v9", name);
    for (int i = 0; length < (int)sizeof newest && table[i].name; i++)
        if (!strcmp(table[i].name, newest))
            name = newest;
    for (int i = 0; table[i].name; i++)
        if (!strcmp(table[i].name, name)) {
            *address = table[i].address;
            return 0;
        }
    *address = NULL;
    return 500;
}

int cuGetProcAddress(const char *name, void **address, int version, unsigned long flags) {
    (void)version, (void)flags;
    return look_up(name, address);
}

int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long flags, int *status) {
    (void)version, (void)flags;
    int code = look_up(name, address);
    if (status)
        *status = code ? 1 : 0;
    return code;
}

/* Finds the other by its name, so that it is asked through whoever stands before this driver. */
int cuGetProcAddress_v2_ptsz(const char *name, void **address, int version, unsigned long flags, int *status) {
    return cuGetProcAddress_v2(name, address, version, flags, status);
}
#endif
