/* What every.c and every_driver.c agree on. The calls are in `calls.h`, which the test writes:
 * `#define CALLS(X) X(1, cuInit, 10) …`: number, name, and how many arguments count. Each call
 * gets eight integers, of which two are on the stack, and two numbers with a fraction. */
#include "calls.h"

#define ARGUMENTS long a, long b, long c, long d, long e, long f, long g, long h, double x, double y

/* What the driver answers to call `number` with these arguments; no two of them have the same weight. */
static int answer(long number, int count, ARGUMENTS) {
    long sum = number;
    const long all[] = {a, b, c, d, e, f, g, h, (long)(x * 16), (long)(y * 16)};
    for (int i = 0; i < count; i++)
        sum = sum * 31 + all[i];
    return (int)(sum & 0x7ffffff) | 0x8000000;
}
