"""How tensors cross to the kernels of exact posteriors: as the packed integers of a C struct."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

REFUSED, IMPOSSIBLE, OUT_OF_RANGE, NO_MEMORY = 1, 2, 4, 8  # enum Status of packs.h


def pointer(x: Tensor | None) -> int:
    """Address of the first element, 0 where there is no tensor."""
    return 0 if x is None else x.data_ptr()


def rows_of(x: Tensor, dims: int) -> tuple[Tensor, int]:
    """A tensor whose last `dims` axes are contiguous, and the stride of the axis before them: 0 where there is none,
    and one row serves all. Copies only what is laid out otherwise."""
    sizes, strides = x.shape[x.dim() - dims :], x.stride()[x.dim() - dims :]
    wanted = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != wanted:
            x = x.contiguous()
            break
        wanted *= size
    return x, x.stride(0) if x.dim() > dims and x.shape[0] > 1 else 0


class Draw(NamedTuple):
    """The sequences of a batch, seed by seed: `size` of each from `first` on, at one step of one stream."""

    seeds: Tensor  # (E,) int64 on the CPU
    size: int
    first: int
    step: int
    stream: int

    @classmethod
    def of(cls, seeds: Sequence[int], size: int, first: int, step: int, stream: int) -> "Draw":
        """Seeds in [0, 2⁶³)."""
        return cls(torch.tensor(seeds, dtype=torch.int64), size, first, step, stream)

    @property
    def rows(self) -> int:
        """R = E · size."""
        return len(self.seeds) * self.size

    def pack(self) -> bytes:
        """struct Draw of philox.h; valid while self.seeds lives."""
        return struct.pack("=6q", pointer(self.seeds), len(self.seeds), self.size, self.first, self.step, self.stream)


def check(status: int, what: str) -> int:
    """The status, unless memory ran out: MemoryError."""
    if status & NO_MEMORY:
        raise MemoryError(f"{what} could not allocate its scratch memory")
    return status
