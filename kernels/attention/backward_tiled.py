"""Backward attention of long heads, without atomics: one kernel for rows (dq), then one for columns (dk, dv).

The row kernel walks over the keys of a block of queries and leaves delta_i = E_i − dlse_i, with E_i = u_i·o_i, for the
column kernel, which walks over the queries of a block of keys, head after head of its group. Seven products instead
of five, and the order of every sum is fixed.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton.finite import finite_or_zero
from .._triton.views import load_tile, load_vector, split, store_tile, store_vector
from .column_sums import ColumnSums, store_column_sums
from .problem import live_counts, low, product, recovered_weights, scaled_queries, scores, visible


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


class Keys(NamedTuple):
    """A block of keys: operands, column numbers, and how many queries are live."""

    k: Any
    v: Any
    columns: Any
    batch: Any
    live_queries: Any


@triton.jit
def add_keys(sums, block, inputs, start, scale, config: tl.constexpr, MASKED: tl.constexpr):
    """The share of one tile of keys in dq and in the row statistics."""
    columns = start + tl.arange(0, config.block_n)
    k = load_tile(inputs.k, block.batch, block.key_head, columns, block.live_keys, config.width, config.block_d)
    v = load_tile(inputs.v, block.batch, block.key_head, columns, block.live_keys, config.value_width, config.block_v)
    p = recovered_weights(scores(block.q, tl.trans(k), scale, config), block.lse[:, None], config)
    b = product(block.u, tl.trans(v), config)
    if MASKED:
        seen = visible(block.rows, columns, block.live_keys, config.causal)
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
    """dq, delta and the row statistics of one block of queries."""
    BLOCK_M: tl.constexpr = config.block_m
    BLOCK_N: tl.constexpr = config.block_n
    BLOCK_D: tl.constexpr = config.block_d
    BLOCK_V: tl.constexpr = config.block_v
    blocks = tl.cdiv(problem.queries, BLOCK_M)
    batch, head = split(tl.program_id(0) // blocks, problem.heads)
    # The last blocks of a causal head have the most keys: they go first.
    first_row = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    live_queries, live_keys = live_counts(problem, batch, config.causal)
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_tile(inputs.q, batch, head, rows, live_queries, config.width, BLOCK_D)
    u = load_tile(inputs.u, batch, head, rows, live_queries, config.value_width, BLOCK_V)
    o = load_tile(inputs.o, batch, head, rows, live_queries, config.value_width, BLOCK_V)
    expected = tl.sum(u.to(tl.float32) * o.to(tl.float32), 1)
    shifted = expected
    if inputs.dlse is not None:
        shifted -= load_vector(inputs.dlse, batch, head, rows, live_queries, 0.0)
    store_vector(delta, batch, head, rows, problem.queries, shifted)
    # An infinite lse makes every weight of a dead row 0.
    lse = load_vector(inputs.lse, batch, head, rows, live_queries, float("inf"))
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


@triton.jit
def add_queries(sums, block, inputs, delta, head, start, scale, config: tl.constexpr, MASKED: tl.constexpr):
    """The share of one tile of queries in dk, dv and the column statistics. Tiles are transposed: keys by queries."""
    rows = start + tl.arange(0, config.block_m)
    q = load_tile(inputs.q, block.batch, head, rows, block.live_queries, config.width, config.block_d)
    q = scaled_queries(q, scale, config)
    u = load_tile(inputs.u, block.batch, head, rows, block.live_queries, config.value_width, config.block_v)
    lse = load_vector(inputs.lse, block.batch, head, rows, block.live_queries, float("inf"))
    shifted = load_vector(delta, block.batch, head, rows, block.live_queries, 0.0)
    p = recovered_weights(scores(block.k, tl.trans(q), scale, config), lse[None, :], config)
    ds = p * (product(block.v, tl.trans(u), config) - shifted[None, :])
    if MASKED:
        seen = rows[None, :] >= block.columns[:, None]
        p = tl.where(seen, p, 0.0)
        ds = tl.where(seen, ds, 0.0)
    dv = sums.dv + product(low(p, config), u, config)
    dk = sums.dk + product(low(ds, config), q, config)
    responsibility, routing, absolute_routing = sums.responsibility, sums.routing, sums.absolute_routing
    if config.statistics:
        responsibility += tl.sum(p, 1)
        routing += tl.sum(ds, 1)
        absolute_routing += tl.sum(tl.abs(ds), 1)
    return ColumnSums(dk, dv, responsibility, routing, absolute_routing)


@triton.jit
def backward_columns_kernel(inputs, gradients, delta, column_sums, problem, config: tl.constexpr):
    """dk, dv and the column statistics of one block of keys, over the query heads that share them."""
    BLOCK_M: tl.constexpr = config.block_m
    BLOCK_N: tl.constexpr = config.block_n
    BLOCK_D: tl.constexpr = config.block_d
    BLOCK_V: tl.constexpr = config.block_v
    blocks = tl.cdiv(problem.keys, BLOCK_N)
    batch, key_head = split(tl.program_id(0) // blocks, problem.heads // problem.group)
    # The first blocks of a causal head are seen by the most queries and go first.
    first_column = tl.program_id(0) % blocks * BLOCK_N
    live_queries, live_keys = live_counts(problem, batch, config.causal)
    columns = first_column + tl.arange(0, BLOCK_N)
    k = load_tile(inputs.k, batch, key_head, columns, live_keys, config.width, BLOCK_D)
    v = load_tile(inputs.v, batch, key_head, columns, live_keys, config.value_width, BLOCK_V)
    block = Keys(k, v, columns, batch, live_queries)
    zero = tl.full([BLOCK_N], 0.0, tl.float32)
    dk = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    dv = tl.full([BLOCK_N, BLOCK_V], 0.0, tl.float32)
    end = tl.where(first_column < live_keys, live_queries, 0)
    alive = columns < live_keys
    for member in range(0, problem.group):
        head = key_head * problem.group + member
        # The norm of dv is each head's own: with statistics every head starts its sum at 0.
        own_dv = dv
        if config.statistics:
            own_dv = tl.full([BLOCK_N, BLOCK_V], 0.0, tl.float32)
        sums = ColumnSums(dk, own_dv, zero, zero, zero)
        unmasked = 0
        if config.causal:
            first = first_column // BLOCK_M * BLOCK_M
            unmasked = tl.cdiv(first_column + BLOCK_N - 1, BLOCK_M) * BLOCK_M
            for start in range(first, tl.minimum(unmasked, end), BLOCK_M):
                sums = add_queries(sums, block, inputs, delta, head, start, problem.scale, config, True)
        for start in range(unmasked, end, BLOCK_M):
            sums = add_queries(sums, block, inputs, delta, head, start, problem.scale, config, False)
        dk = sums.dk
        if config.statistics:
            store_column_sums(sums, column_sums, batch, head, columns, alive, problem.keys)
            dv += sums.dv
        else:
            dv = sums.dv
    if not config.exact:
        dk *= problem.scale
    dk = tl.where(alive[:, None], dk, 0.0)
    dv = tl.where(alive[:, None], dv, 0.0)
    store_tile(gradients.k, batch, key_head, columns, problem.keys, dk, config.width, BLOCK_D)
    store_tile(gradients.v, batch, key_head, columns, problem.keys, dv, config.value_width, BLOCK_V)
