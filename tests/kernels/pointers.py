"""A kernel that reports the offsets at which a tile would be read, for strides that no memory could hold."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesattn_fast.kernels._triton.views import Matrices, tile_pointers


@triton.jit
def offsets_kernel(view, out, batch, head, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, ROWS)
    pointers = tile_pointers(view, batch.to(tl.int64), head.to(tl.int64), rows, BLOCK)
    offsets = pointers.to(tl.int64) - view.pointer.to(tl.int64)
    tl.store(out + rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], offsets)


def byte_offsets(strides: tuple[int, int, int, int], batch: int, head: int) -> Tensor:
    """(16, 16) byte offsets of the first rows and columns of one head of a bfloat16 tensor with these strides."""
    out = torch.zeros(16, 16, dtype=torch.int64)
    view = Matrices(torch.zeros(1, dtype=torch.bfloat16), *strides, tl.constexpr(1))
    offsets_kernel[(1,)](view, out, batch, head, ROWS=16, BLOCK=16)
    return out
