/* Looks up every call of calls.h in the library of its argument, by dlsym and, where the library
 * has it, by the three variants of cuGetProcAddress, and prints for each the file in which it was found.
 * If that is the driver's, or if the second argument is `all`, it calls it as well:
 * `name how file lost`; `lost` is 0 if the driver got the arguments unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "every.h"

typedef int call(ARGUMENTS);
typedef int old_look_up(const char *, void **, int, unsigned long);
typedef int look_up(const char *, void **, int, unsigned long, int *);

static const struct row {
    long number;
    const char *name;
    int count;
} calls[] = {
#define ROW(number, name, count) {number, #name, count},
    CALLS(ROW){0, NULL, 0}};

static void say(const struct row *row, const char *how, void *address, int all) {
    Dl_info where = {0};
    if (!address || !dladdr(address, &where)) {
        printf("%s %s nowhere 0\n", row->name, how);
        return;
    }
    const char *file = strrchr(where.dli_fname, '/');
    file = file ? file + 1 : where.dli_fname;
    int lost = 0;
    if (all || strcmp(file, "libvgpu.so")) {
        /* What may be a pointer that is read is null. */
        long n = row->number * 16, first = all ? 0 : n + 1;
        int said = ((call *)address)(first, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, 0.5, 0.25);
        lost = said != answer(row->number, row->count, first, n + 2, n + 3, n + 4, n + 5, n + 6,
                              n + 7, n + 8, 0.5, 0.25);
    }
    printf("%s %s %s %d\n", row->name, how, file, lost);
}

int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    int all = count > 2 && !strcmp(words[2], "all");
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    old_look_up *oldest = (old_look_up *)dlsym(library, "cuGetProcAddress");
    look_up *newer = (look_up *)dlsym(library, "cuGetProcAddress_v2");
    look_up *own = (look_up *)dlsym(library, "cuGetProcAddress_v2_ptsz");
    for (const struct row *row = calls; row->name; row++) {
        /* A driver may answer that it has no such call by a null address. */
        void *first = NULL, *second = NULL, *third = NULL;
        say(row, "dlsym", dlsym(library, row->name), all);
        if (oldest && !oldest(row->name, &first, 13050, 0) && first)
            say(row, "oldest", first, all);
        if (newer && !newer(row->name, &second, 13050, 0, NULL) && second)
            say(row, "newer", second, all);
        if (own && !own(row->name, &third, 13050, 0, NULL) && third)
            say(row, "own", third, all);
    }
    return 0;
}
