"""A tenant that may use more than it requested: `borrower.py REQUEST LIMIT CONTEXT SEED`, in MiB.

It prints `ready` when it has a context, and carries out one order a line:
- `idle` frees everything.
- `fill` allocates up to its limit, or until it got no more for five seconds: nothing is lent while
  memory is called back.
- `request` allocates up to its request.
- `random SECONDS` moves its use to random amounts.

Each answer is the order's first word, MiB in use, allocations within its request, how many of them
were refused, and the longest in ms.
"""

import ctypes
import random
import sys
import time

MIB = 1 << 20
OUT_OF_MEMORY = 2
BLOCK = 128

request, limit, context, seed = (int(word) for word in sys.argv[1:])
cuda = ctypes.CDLL("libcuda.so.1")
rng = random.Random(seed)
allocations = []
granted, refused, longest = 0, 0, 0.0


def check(code, expected=(0,)):
    assert code in expected, code
    return code


def used():
    return context + sum(size for _, size in allocations)


def allocate(size):
    global granted, refused, longest
    pointer, handle = ctypes.c_uint64(), ctypes.c_size_t(size * MIB)
    is_due = used() + size <= request
    begun = time.monotonic()
    code = check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), handle), (0, OUT_OF_MEMORY))
    took = (time.monotonic() - begun) * 1000
    if is_due:
        longest = max(longest, took)
        if code:
            refused += 1
            print(f"refused {used()} {size} {took:.0f}", flush=True)
        else:
            granted += 1
    if code == 0:
        allocations.append((pointer, size))
    return code == 0


def free():
    index = rng.randrange(len(allocations))
    pointer, _ = allocations.pop(index)
    check(cuda.cuMemFree_v2(pointer))


def grow(to):
    """Allocates until so much is in use or no more is to be had."""
    size = BLOCK
    while size >= 2:
        size = min(size, (to - used()) // 2 * 2)
        if size < 2:
            return
        if not allocate(size):
            size //= 2


def fill():
    progress = time.monotonic()
    while used() + 2 <= limit and time.monotonic() < progress + 5:
        before = used()
        grow(limit)
        if used() > before:
            progress = time.monotonic()
        time.sleep(0.1)


def move(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        target = rng.choice((0, request // 2, request, limit, rng.randint(context, limit)))
        while used() > max(target, context) and allocations:
            free()
        size = rng.choice((16, 64, 256))
        while used() + size <= target and allocate(size):
            pass
        time.sleep(rng.uniform(0.05, 0.5))


check(cuda.cuInit(0))
created = ctypes.c_void_p()
check(cuda.cuCtxCreate_v2(ctypes.byref(created), 0, 0))
print("ready", flush=True)
for line in sys.stdin:
    granted, refused, longest = 0, 0, 0.0
    order, *words = line.split()
    if order == "idle":
        while allocations:
            free()
    elif order == "fill":
        fill()
    elif order == "request":
        grow(request)
    else:
        move(float(words[0]))
    print(f"{order} {used()} {granted} {refused} {longest:.0f}", flush=True)
