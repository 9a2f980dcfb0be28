"""A tensor of up to five axes as one kernel argument: its pointer and the stride of every axis.

Strides are the tensor's own, 0 included, so nothing is copied before a launch; indices are 64-bit where they meet
strides. An absent tensor is None, known when the kernel is compiled.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Strided(NamedTuple):
    """Pointer and element strides, 0 past the tensor's last axis."""

    pointer: Any
    s0: int
    s1: int
    s2: int
    s3: int
    s4: int


def strided(tensor: Tensor | None) -> Strided | None:
    """The tensor, of at most five axes, as a kernel argument."""
    if tensor is None:
        return None
    strides = tensor.stride()
    return Strided(tensor, *strides, *[0] * (5 - len(strides)))


@triton.jit
def wide(index):
    """The index in 64 bits."""
    return tl.cast(index, tl.int64)


@triton.jit
def load(pointers, mask):
    """Values in float32; 0 where masked, whatever lies there."""
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(pointers, values, mask):
    """Write values, rounded to the type of what they go to."""
    tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)
