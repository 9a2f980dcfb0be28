"""A tensor as a kernel sees it: a pointer and its strides in one argument, and how to load and store a tile of it.

Strides are those of the tensor, 0 included, so nothing is copied before a launch. Offsets are 64-bit: a strided view
of a fused projection passes 2³¹ elements long before its tensor has that many. `unit` is the largest power of two, up
to 16, that divides every row's offset; telling the compiler keeps loads vectorised where rows are not multiples of 16
elements, such as head sizes 8, 24 and 40.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Matrices(NamedTuple):
    """A (B, H, N, D) tensor: pointer and element strides."""

    pointer: Any
    batch: int
    head: int
    row: int
    column: int
    unit: tl.constexpr


class Vectors(NamedTuple):
    """A (B, H, N) tensor: pointer and element strides."""

    pointer: Any
    batch: int
    head: int
    row: int


def matrices(tensor: Tensor) -> Matrices:
    """The (B, H, N, D) tensor as a kernel argument."""
    batch, head, row, column = tensor.stride()
    unit = 16
    while unit > 1 and (batch % unit or head % unit or row % unit):
        unit //= 2
    return Matrices(tensor, batch, head, row, column, tl.constexpr(unit))


def vectors(tensor: Tensor) -> Vectors:
    """The (B, H, N) tensor as a kernel argument."""
    batch, head, row = tensor.stride()
    return Vectors(tensor, batch, head, row)


@triton.jit
def split(index, inner):
    """(index // inner, index % inner), as 64-bit integers, ready to be multiplied by strides."""
    outer = index // inner
    return outer.to(tl.int64), (index - outer * inner).to(tl.int64)


@triton.jit
def tile_pointers(view, batch, head, rows, BLOCK: tl.constexpr):
    """(rows, BLOCK) pointers into one head of `view`."""
    start = tl.multiple_of(batch * view.batch + head * view.head, view.unit)
    offset = tl.multiple_of(rows.to(tl.int64)[:, None] * view.row, [view.unit, view.unit])
    return view.pointer + start + offset + tl.arange(0, BLOCK).to(tl.int64)[None, :] * view.column


@triton.jit
def tile_mask(rows, live, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK): inside the first `live` rows and the first WIDTH columns."""
    mask = (rows < live)[:, None]
    if WIDTH < BLOCK:
        mask = mask & (tl.arange(0, BLOCK) < WIDTH)[None, :]
    return mask


@triton.jit
def load_tile(view, batch, head, rows, live, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of one head, in the tensor's own type; 0 past `live` rows and past WIDTH columns, whatever lies there."""
    pointers = tile_pointers(view, batch, head, rows, BLOCK)
    return tl.load(pointers, mask=tile_mask(rows, live, WIDTH, BLOCK), other=0.0)


@triton.jit
def store_tile(view, batch, head, rows, count, values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write rows of one head, rounded to the tensor's own type, as far as it has `count` rows and WIDTH columns."""
    pointers = tile_pointers(view, batch, head, rows, BLOCK)
    values = values.to(view.pointer.dtype.element_ty)
    tl.store(pointers, values, mask=tile_mask(rows, count, WIDTH, BLOCK))


@triton.jit
def load_vector(view, batch, head, rows, live, other):
    """Entries of one head's vector in float32; `other` past `live`."""
    pointers = view.pointer + batch * view.batch + head * view.head + rows.to(tl.int64) * view.row
    return tl.load(pointers, mask=rows < live, other=other).to(tl.float32)


@triton.jit
def store_vector(view, batch, head, rows, count, values):
    """Write entries of one head's vector, as far as it has `count`."""
    pointers = view.pointer + batch * view.batch + head * view.head + rows.to(tl.int64) * view.row
    tl.store(pointers, values, mask=rows < count)
