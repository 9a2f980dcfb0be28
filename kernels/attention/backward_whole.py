"""Backward attention of short heads: one program holds every key of a head; five products, one launch, no atomics.

    p = e^{s − lse}    b = u vᵀ    E = Σ_j p b    ds = p (b − E + dlse)
    dv = pᵀ u          dk = scale dsᵀ q           dq = scale ds k

The program walks over the queries in blocks. A block's dq is complete at once, because all keys are there, and so is
E, so that o is not read. Query heads that share a key head follow one another: dk and dv add up in one fixed order.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton.finite import finite_or_zero
from .._triton.views import load_tile, load_vector, split, store_tile, store_vector
from .column_sums import ColumnSums, store_column_sums
from .problem import live_counts, low, product, recovered_weights, scaled_queries, scores, visible


class Keys(NamedTuple):
    """All keys of one head and how many queries and keys are live."""

    k: Any
    v: Any
    columns: Any
    batch: Any
    live_queries: Any
    live_keys: Any


@triton.jit
def add_queries(sums, keys, inputs, gradients, row_sums, head, start, problem, config: tl.constexpr):
    """One block of queries: writes its dq and row statistics, adds its share to dk, dv and the column statistics."""
    batch = keys.batch
    rows = start + tl.arange(0, config.block_m)
    q = load_tile(inputs.q, batch, head, rows, keys.live_queries, config.width, config.block_d)
    q = scaled_queries(q, problem.scale, config)
    u = load_tile(inputs.u, batch, head, rows, keys.live_queries, config.value_width, config.block_v)
    # An infinite lse makes every weight of a dead row 0.
    lse = load_vector(inputs.lse, batch, head, rows, keys.live_queries, float("inf"))
    seen = visible(rows, keys.columns, keys.live_keys, config.causal)
    p = recovered_weights(scores(q, tl.trans(keys.k), problem.scale, config), lse[:, None], config)
    p = tl.where(seen, p, 0.0)
    b = product(u, tl.trans(keys.v), config)
    if config.causal:
        b = tl.where(seen, b, 0.0)
    expected = tl.sum(p * b, 1)
    advantage = b - expected[:, None]
    ds = p * advantage
    if config.statistics:
        variance = tl.sum(ds * advantage, 1)
    if inputs.dlse is not None:
        ds += p * load_vector(inputs.dlse, batch, head, rows, keys.live_queries, 0.0)[:, None]
    k = keys.k
    if config.causal:
        # A row spoilt by a NaN must spoil only what it sees; a key spoilt by one, only the rows that see it.
        ds = tl.where(seen, ds, 0.0)
        k = finite_or_zero(k)
    operand = low(ds, config)
    alive = rows < keys.live_queries
    dq = tl.where(alive[:, None], product(operand, k, config) * problem.scale, 0.0)
    store_tile(gradients.q, batch, head, rows, problem.queries, dq, config.width, config.block_d)
    dv = sums.dv + product(tl.trans(low(p, config)), u, config)
    dk = sums.dk + product(tl.trans(operand), q, config)
    responsibility, routing, absolute_routing = sums.responsibility, sums.routing, sums.absolute_routing
    if config.statistics:
        count = problem.queries
        store_vector(row_sums.expected, batch, head, rows, count, tl.where(alive, expected, 0.0))
        store_vector(row_sums.variance, batch, head, rows, count, tl.where(alive, variance, 0.0))
        store_vector(row_sums.score_norm2, batch, head, rows, count, tl.where(alive, tl.sum(ds * ds, 1), 0.0))
        responsibility += tl.sum(p, 0)
        routing += tl.sum(ds, 0)
        absolute_routing += tl.sum(tl.abs(ds), 0)
    return ColumnSums(dk, dv, responsibility, routing, absolute_routing)


@triton.jit
def backward_whole_kernel(inputs, gradients, row_sums, column_sums, problem, config: tl.constexpr):
    """One key head with its group of query heads."""
    BLOCK_M: tl.constexpr = config.block_m
    BLOCK_N: tl.constexpr = config.block_n
    BLOCK_D: tl.constexpr = config.block_d
    BLOCK_V: tl.constexpr = config.block_v
    batch, key_head = split(tl.program_id(0), problem.heads // problem.group)
    live_queries, live_keys = live_counts(problem, batch, config.causal)
    columns = tl.arange(0, BLOCK_N)
    k = load_tile(inputs.k, batch, key_head, columns, live_keys, config.width, BLOCK_D)
    v = load_tile(inputs.v, batch, key_head, columns, live_keys, config.value_width, BLOCK_V)
    keys = Keys(k, v, columns, batch, live_queries, live_keys)
    dk = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    dv = tl.full([BLOCK_N, BLOCK_V], 0.0, tl.float32)
    zero = tl.full([BLOCK_N], 0.0, tl.float32)
    for member in range(0, problem.group):
        head = key_head * problem.group + member
        # The norm of dv is each head's own: with statistics every head starts its sum at 0.
        own_dv = dv
        if config.statistics:
            own_dv = tl.full([BLOCK_N, BLOCK_V], 0.0, tl.float32)
        sums = ColumnSums(dk, own_dv, zero, zero, zero)
        # Dead rows are walked over too: their dq is 0 and has to be written.
        for start in range(0, problem.queries, BLOCK_M):
            sums = add_queries(sums, keys, inputs, gradients, row_sums, head, start, problem, config)
        dk = sums.dk
        if config.statistics:
            store_column_sums(sums, column_sums, batch, head, columns, columns < live_keys, problem.keys)
            dv += sums.dv
        else:
            dv = sums.dv
    if not config.exact:
        dk *= problem.scale
    store_tile(gradients.k, batch, key_head, columns, problem.keys, dk, config.width, BLOCK_D)
    store_tile(gradients.v, batch, key_head, columns, problem.keys, dv, config.value_width, BLOCK_V)
