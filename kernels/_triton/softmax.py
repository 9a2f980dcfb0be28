"""Online softmax of rows that arrive tile by tile, with its routing statistics.

    m = max_j s_j     total = Σ_j e^{s_j − m}     rest = total without the term of the maximum, which is exactly 1
    spread = Σ_j e^{s_j − m} (m − s_j)            entropy = log(1 + rest) + spread / total

Both parts of the entropy are sums of non-negative terms, so a near one-hot row keeps its small entropy; lse − E[s]
would cancel. Milakov & Gimelshein (2018) for the running maximum.

Scores come in one of two units. EXACT: natural units, e^x = 2^(x log2 e); where s equals the row's lse bit for bit,
the weight comes out as exactly 1, whatever |s| is. Otherwise: units of log 2, the caller having folded log2 e into
the scale, which saves a multiplication an element and costs a relative 6e-8 |s| in the weights.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Stands in for the maximum of a row without any key yet: finite, so that no −inf − (−inf) arises.
NO_SCORE = tl.constexpr(-1.0e38)
NO_COLUMN = tl.constexpr(2**30)


class Softmax(NamedTuple):
    """Running state, one entry a row; rest, spread and argmax move only where statistics are asked for."""

    top: Any
    total: Any
    rest: Any
    spread: Any
    argmax: Any


@triton.jit
def exponential(x, EXACT: tl.constexpr):
    """e^x for x in the units of the scores."""
    if EXACT:
        return tl.exp2(x * LOG2E)
    else:
        return tl.exp2(x)


@triton.jit
def start(ROWS: tl.constexpr):
    """The state before the first tile."""
    zero = tl.full([ROWS], 0.0, tl.float32)
    return Softmax(tl.full([ROWS], NO_SCORE, tl.float32), zero, zero, zero, tl.full([ROWS], -1, tl.int32))


@triton.jit
def update(state, scores, columns, EXACT: tl.constexpr, STATISTICS: tl.constexpr):
    """Take in one (rows, columns) tile of scores, −inf where masked.

    Returns the state, the tile's weights e^{s − m}, and the factor that brings earlier sums to the new maximum.
    """
    tile_top = tl.max(scores, 1)
    top = tl.maximum(state.top, tile_top)
    weights = exponential(scores - top[:, None], EXACT)
    decay = exponential(state.top - top, EXACT)
    total = state.total * decay + tl.sum(weights, 1)
    rest, spread, argmax = state.rest, state.spread, state.argmax
    if STATISTICS:
        # 0 · (0 − NO_SCORE) on the first tile: finite, and 0.
        gap = tl.where(weights > 0, weights * (top[:, None] - scores), 0.0)
        spread = decay * (spread + state.total * (top - state.top)) + tl.sum(gap, 1)
        first = tl.min(tl.where(scores == tile_top[:, None], columns[None, :], NO_COLUMN), 1)
        others = tl.sum(tl.where(columns[None, :] == first[:, None], 0.0, weights), 1)
        moved = tile_top > state.top
        rest = tl.where(moved, decay * (rest + 1.0) + others, rest + tl.sum(weights, 1))
        argmax = tl.where(moved, first, argmax)
    return Softmax(top, total, rest, spread, argmax), weights, decay


@triton.jit
def log1p(x):
    """log(1 + x) for x ≥ 0, to the last bits of a small x too (Kahan: the rounding of 1 + x divides out)."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / tl.where(y == 1.0, 1.0, y - 1.0)))


@triton.jit
def log_sum_exp(state, dead, EXACT: tl.constexpr):
    """lse in nats; −inf for dead rows."""
    top = state.top
    if not EXACT:
        top = top * LN2
    return tl.where(dead, float("-inf"), top + tl.log(tl.where(dead, 1.0, state.total)))


@triton.jit
def entropy(state, dead, EXACT: tl.constexpr):
    """Entropy of each row's weights in nats; 0 for dead rows."""
    spread = state.spread
    if not EXACT:
        spread = spread * LN2
    return tl.where(dead, 0.0, log1p(state.rest) + spread / tl.where(dead, 1.0, state.total))
