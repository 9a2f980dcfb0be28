"""x ← 2^−|x|, many times in registers: how many exponentials a second a GPU makes when memory does not count."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles, which have no types of Python's.

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def exponentials_kernel(source, target, count, LOOPS: tl.constexpr, BLOCK: tl.constexpr):
    """One block of numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < count, other=0.0)
    for _ in range(LOOPS):
        x = tl.exp2(-tl.abs(x))
    tl.store(target + at, x, mask=at < count)


def repeated_exponentials(x: Tensor, loops: int) -> Tensor:
    """x (N,) float32 after `loops` rounds; the map has a fixed point at 0.641, so nothing overflows."""
    target = x.new_empty(x.shape)
    exponentials_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, target, x.numel(), LOOPS=loops, BLOCK=BLOCK)
    return target
