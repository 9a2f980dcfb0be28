"""Backward attention by rows, for heads too long for one tile: dq, the row statistics, and delta for the columns.

    p = e^{s − lse}    b = u vᵀ    E_i = u_i·o_i    delta = E − dlse    ds = p (b − delta)    dq = scale ds k

One program holds a block of queries and walks over the keys. Var = Σ_j p (b − E)² is summed about E, which is known
beforehand, so nothing cancels.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton.finite import finite_or_zero
from .._triton.views import load_tile, split, store_tile, store_vector
from .problem import expectation, live_counts, low, product, recovered_weights, scaled_queries, scores, visible


class Queries(NamedTuple):
    """A block of queries: operands, row numbers, lse, E and delta, and where its keys are."""

    q: Any
    u: Any
    rows: Any
    lse: Any
    expected: Any
    delta: Any
    batch: Any
    key_head: Any
    live_keys: Any


class RowSums(NamedTuple):
    """Running sums of a block of queries; the last two move only with statistics."""

    dq: Any
    variance: Any
    score_norm2: Any


@triton.jit
def add_keys(sums, block, inputs, start, scale, config: tl.constexpr, MASKED: tl.constexpr):
    """The share of one tile of keys in dq and in the row statistics."""
    columns = start + tl.arange(0, config.block_n)
    k = load_tile(inputs.k, block.batch, block.key_head, columns, block.live_keys, config.width, config.block_d)
    v = load_tile(inputs.v, block.batch, block.key_head, columns, block.live_keys, config.value_width, config.block_v)
    if config.exact and config.precision == "ieee":
        # Written as keys by queries, ptxas leaves the loop's constant operand in shared memory; the other way round it
        # holds all of it in registers, and spills.
        score = tl.trans(scores(k, tl.trans(block.q), scale, config))
        b = tl.trans(product(v, tl.trans(block.u), config))
    else:
        score = scores(block.q, tl.trans(k), scale, config)
        b = product(block.u, tl.trans(v), config)
    p = recovered_weights(score, block.lse[:, None], config)
    if MASKED:
        seen = visible(block.rows[:, None], columns[None, :], block.live_keys, config.causal)
        p = tl.where(seen, p, 0.0)
        if config.causal:
            b = tl.where(seen, b, 0.0)
            k = finite_or_zero(k)
    ds = p * (b - block.delta[:, None])
    variance, score_norm2 = sums.variance, sums.score_norm2
    if config.statistics:
        advantage = b - block.expected[:, None]
        variance += tl.sum(p * advantage * advantage, 1)
        score_norm2 += tl.sum(ds * ds, 1)
    return RowSums(sums.dq + product(low(ds, config), k, config), variance, score_norm2)


@triton.jit
def backward_rows_kernel(inputs, gradients, delta, row_sums, problem, config: tl.constexpr):
    """One block of queries of one head."""
    BLOCK_M: tl.constexpr = config.block_m
    BLOCK_N: tl.constexpr = config.block_n
    BLOCK_D: tl.constexpr = config.block_d
    blocks = tl.cdiv(problem.queries, BLOCK_M)
    batch, head = split(tl.program_id(0) // blocks, problem.heads)
    # The last blocks of a causal head have the most keys: they go first.
    first_row = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    live_queries, live_keys = live_counts(problem, batch, config.causal)
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_tile(inputs.q, batch, head, rows, live_queries, config.width, BLOCK_D)
    u = load_tile(inputs.u, batch, head, rows, live_queries, config.value_width, config.block_v)
    lse, expected, shifted = expectation(inputs, u, batch, head, rows, live_queries, config)
    store_vector(delta, batch, head, rows, problem.queries, shifted)
    q = scaled_queries(q, problem.scale, config)
    block = Queries(q, u, rows, lse, expected, shifted, batch, head // problem.group, live_keys)
    zero = tl.full([BLOCK_M], 0.0, tl.float32)
    sums = RowSums(tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32), zero, zero)
    end = tl.where(first_row < live_queries, live_keys, 0)
    unmasked = end // BLOCK_N * BLOCK_N
    if config.causal:
        end = tl.minimum(end, first_row + BLOCK_M)
        unmasked = tl.minimum(unmasked, (first_row + 1) // BLOCK_N * BLOCK_N)
    for start in range(0, unmasked, BLOCK_N):
        sums = add_keys(sums, block, inputs, start, problem.scale, config, False)
    for start in range(unmasked, end, BLOCK_N):
        sums = add_keys(sums, block, inputs, start, problem.scale, config, True)
    alive = rows < live_queries
    dq = tl.where(alive[:, None], sums.dq * problem.scale, 0.0)
    store_tile(gradients.q, batch, head, rows, problem.queries, dq, config.width, BLOCK_D)
    if config.statistics:
        count = problem.queries
        store_vector(row_sums.expected, batch, head, rows, count, expected)
        store_vector(row_sums.variance, batch, head, rows, count, tl.where(alive, sums.variance, 0.0))
        store_vector(row_sums.score_norm2, batch, head, rows, count, tl.where(alive, sums.score_norm2, 0.0))
