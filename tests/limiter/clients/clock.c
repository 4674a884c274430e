/* A clock that stands still for the limiter alone, as a program with a faked clock shows it: the
 * simulated driver lives in the same process, and needs the real one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    Dl_info caller;
    if (dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libvgpu")) {
        time->tv_sec = 1;
        time->tv_nsec = 0;
        return 0;
    }
    return syscall(SYS_clock_gettime, clock, time);
}
