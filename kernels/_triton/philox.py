"""Random words on a GPU: the bits of kernels/philox/reference.py, a row of a batch per lane."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Draws(NamedTuple):
    """The rows of a batch, seed by seed: row r is sequence first + r % size of seed r // size. seeds (E,) int64."""

    seeds: Tensor
    size: int
    first: int
    step: int
    stream: int


class Names(NamedTuple):
    """Of every row: its seed, and the last three words of its counters."""

    seed: tl.tensor
    sequence: tl.tensor
    step: tl.tensor
    stream: tl.tensor


@triton.jit
def names(draws, row, live):
    """The names of rows (B,) int64."""
    seed = tl.load(draws.seeds + row // draws.size, live, other=0)
    sequence = row % draws.size + draws.first
    zero = row * 0
    step, stream = zero + draws.step, zero + draws.stream
    return Names(seed, sequence.to(tl.uint32), step.to(tl.uint32), stream.to(tl.uint32))


@triton.jit
def word(of, w):
    """Word w of every row, uint32."""
    block = (of.seed * 0 + w // 4).to(tl.uint32)
    a, b, c, d = tl.philox(of.seed, block, of.sequence, of.step, of.stream)
    which = w % 4
    return tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


@triton.jit
def below(words, n):
    """(w·n) >> 32: integers in [0, n), int32."""
    return tl.umulhi(words, (words.to(tl.int64) * 0 + n).to(tl.uint32)).to(tl.int32)


@triton.jit
def shuffle(of, begin, take, n, items):
    """draws.shuffle: the first `take` of 0 … n − 1 are drawn by the words from `begin` on. items (B, V ≥ n) int32."""
    v = tl.arange(0, items.shape[1])[None, :]
    for i in range(take):
        other = (i + below(word(of, begin + i), n - i))[:, None]
        own, chosen = tl.sum(tl.where(v == i, items, 0), 1), tl.sum(tl.where(v == other, items, 0), 1)
        items = tl.where(v == i, chosen[:, None], tl.where(v == other, own[:, None], items))
    return items
