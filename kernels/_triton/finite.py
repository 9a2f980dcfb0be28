"""Keep a NaN or infinity from the rows that may not see it: a weight of 0 times NaN is NaN, not 0."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

import triton
import triton.language as tl

NEVER = tl.constexpr(2**30)


@triton.jit
def is_finite(x):
    return tl.abs(x.to(tl.float32)) < float("inf")


@triton.jit
def finite_or_zero(x):
    return tl.where(is_finite(x), x, 0.0)


@triton.jit
def first_bad_row(x, rows):
    """The first of `rows` that holds a NaN or infinity in `x`; NEVER where none does."""
    return tl.min(tl.min(tl.where(is_finite(x), NEVER, rows[:, None]), 1), 0)
