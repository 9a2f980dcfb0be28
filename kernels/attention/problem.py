"""What the Triton attention kernels are told about one call: sizes and masks, and the compile-time configuration."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton import softmax
from .._triton.launch import INTERPRETED
from .._triton.views import load_tile, load_vector

ELEMENTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


class Problem(NamedTuple):
    """Sizes and masks at run time. heads counts query heads; `group` of them share one key head."""

    heads: int
    group: int
    queries: int
    keys: int
    scale: float
    lengths: Any
    query_lengths: Any


class Config(NamedTuple):
    """What is known when a kernel is compiled.

    exact: float32 inputs, whose scale is folded into q (see softmax.py for the units). element: type of the operands
    of a product. whole: one tile holds all keys of a head; single: all its queries too. block_m queries by block_n
    keys.
    """

    causal: bool
    statistics: bool
    exact: bool
    precision: str
    element: Any
    width: int
    value_width: int
    block_d: int
    block_v: int
    whole: bool
    single: bool
    block_m: int
    block_n: int


def problem(q: Tensor, k: Tensor, scale: float, lengths: Tensor | None, query_lengths: Tensor | None) -> Problem:
    """The run-time part of a call. A seed axis or a batch of 10⁶ is one more factor of the flat grid."""
    heads = q.shape[1]
    return Problem(heads, heads // max(k.shape[1], 1), q.shape[2], k.shape[2], float(scale), lengths, query_lengths)


def config(q: Tensor, v: Tensor, causal: bool, statistics: bool, tf32: bool) -> Config:
    """The compile-time part, its tiles still to be chosen. Raises TypeError for a dtype the kernels do not take."""
    if q.dtype not in ELEMENTS:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in ELEMENTS)
        raise TypeError(f"the Triton attention kernels take {names}; q is {str(q.dtype).removeprefix('torch.')}")
    exact = q.dtype == torch.float32
    return Config(
        causal=causal,
        statistics=statistics,
        exact=exact,
        precision="tf32" if exact and tf32 else "ieee",
        # Triton's interpreter multiplies the bit patterns of bfloat16.
        element=tl.float32 if INTERPRETED else ELEMENTS[q.dtype],
        width=q.shape[3],
        value_width=v.shape[3],
        block_d=padded(q.shape[3]),
        block_v=padded(v.shape[3]),
        whole=False,
        single=False,
        block_m=0,
        block_n=0,
    )


def padded(size: int) -> int:
    """The tile that holds `size`: a power of two, at least 16, the least side of a product on the device."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def live_counts(problem, batch, CAUSAL: tl.constexpr):
    """How many rows and keys of this sequence are live. Keys that only dead rows could see count as dead."""
    queries = problem.queries
    keys = problem.keys
    if problem.query_lengths is not None:
        queries = tl.minimum(tl.maximum(tl.load(problem.query_lengths + batch).to(tl.int32), 0), queries)
    if problem.lengths is not None:
        keys = tl.minimum(tl.maximum(tl.load(problem.lengths + batch).to(tl.int32), 0), keys)
    if CAUSAL:
        keys = tl.minimum(keys, queries)
    return queries, tl.where(queries > 0, keys, 0)


@triton.jit
def visible(rows, columns, live_keys, CAUSAL: tl.constexpr):
    """Which key each row may see, for numbers that broadcast. Dead rows are dealt with by lse, and where stored."""
    seen = columns < live_keys
    if CAUSAL:
        seen = seen & (rows >= columns)
    return seen


@triton.jit
def product(a, b, config: tl.constexpr):
    """a @ b with float32 accumulation, in the chosen precision."""
    return tl.dot(a.to(config.element), b.to(config.element), input_precision=config.precision)


@triton.jit
def low(x, config: tl.constexpr):
    """x rounded to the operands' type, before it is moved between threads."""
    return x.to(config.element)


@triton.jit
def scaled_queries(q, scale, config: tl.constexpr):
    """q as an operand of the scores: exact inputs take the scale here, in float32, and scores need none later."""
    if config.exact:
        return q * scale
    else:
        return q


@triton.jit
def scores(a, b, scale, config: tl.constexpr):
    """Scores of queries against keys (or keys against queries), in the units that softmax.py calls exact or not."""
    raw = product(a, b, config)
    if config.exact:
        return raw
    else:
        return raw * (scale * softmax.LOG2E)


@triton.jit
def recovered_weights(scores, lse, config: tl.constexpr):
    """α from the scores and the forward's lse, in nats."""
    if config.exact:
        return softmax.exponential(scores - lse, True)
    else:
        return softmax.exponential(scores - lse * softmax.LOG2E, False)


@triton.jit
def expectation(inputs, u, batch, head, rows, live_queries, config: tl.constexpr):
    """(lse, E, E − dlse) of a block of rows; an lse of +inf makes every weight of a dead row 0."""
    lse = load_vector(inputs.lse, batch, head, rows, live_queries, float("inf"))
    o = load_tile(inputs.o, batch, head, rows, live_queries, config.value_width, config.block_v)
    expected = tl.sum(u.to(tl.float32) * o.to(tl.float32), 1)
    delta = expected
    if inputs.dlse is not None:
        delta -= load_vector(inputs.dlse, batch, head, rows, live_queries, 0.0)
    return lse, expected, delta
