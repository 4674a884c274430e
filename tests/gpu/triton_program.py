"""A program of Triton, which compiles a kernel and links its launcher against libcuda."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(a, b, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    total = tl.load(a + places, mask=inside) + tl.load(b + places, mask=inside)
    tl.store(out + places, total, mask=inside)


def run(report, rate_of):
    count = 1 << 24
    one, other = (torch.ones(count, device="cuda") for _ in range(2))
    out = torch.empty_like(one)
    grid = (triton.cdiv(count, 1024),)

    def work():
        add[grid](one, other, out, count, BLOCK=1024)

    work()
    torch.cuda.synchronize()
    report(version=triton.__version__, right=bool((out == 2).all()))
    report(launches_a_second=rate_of(work, torch.cuda.synchronize))
