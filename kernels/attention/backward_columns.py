"""Backward attention by columns: dk, dv and the column statistics; for short heads also dq and the row statistics.

    p = e^{s − lse}    b = u vᵀ    ds = p (b − delta)    dv = pᵀ u    dk = scale dsᵀ q    dq = scale ds k

One program holds a block of keys and walks over the queries, and over the query heads that share the keys one after
the other: every sum has one fixed order, and there are no atomics. Where the block holds all keys of a head, each
tile's dq is complete at once: one launch and five products do it all. Otherwise backward_rows.py has run before, and
left delta. Tiles are keys by queries, so that the sums over queries stay within a thread's own rows.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton.finite import finite_or_zero
from .._triton.views import load_tile, load_vector, split, store_tile, store_vector
from .problem import expectation, live_counts, low, product, recovered_weights, scaled_queries, scores, visible


class Keys(NamedTuple):
    """A block of keys, the heads it is read by and reads, and how many queries and keys are live."""

    columns: Any
    batch: Any
    key_head: Any
    head: Any
    live_queries: Any
    live_keys: Any


class Outputs(NamedTuple):
    """Where results go: gradients and statistics, and where delta comes from; None where there is nothing to go."""

    gradients: Any
    row_sums: Any
    column_sums: Any
    delta: Any


class ColumnSums(NamedTuple):
    """Running sums of a block of keys; the last three move only with statistics."""

    dk: Any
    dv: Any
    responsibility: Any
    routing: Any
    absolute_routing: Any


@triton.jit
def load_keys(inputs, block, config: tl.constexpr):
    """The block's keys and values."""
    k = load_tile(inputs.k, block.batch, block.key_head, block.columns, block.live_keys, config.width, config.block_d)
    v = load_tile(
        inputs.v, block.batch, block.key_head, block.columns, block.live_keys, config.value_width, config.block_v
    )
    return k, v


@triton.jit
def add_queries(sums, block, k, v, inputs, outputs, start, problem, config: tl.constexpr, MASKED: tl.constexpr):
    """The share of one tile of queries in dk, dv and the column statistics; where keys are whole, its dq as well."""
    batch, head = block.batch, block.head
    rows = start + tl.arange(0, config.block_m)
    q = load_tile(inputs.q, batch, head, rows, block.live_queries, config.width, config.block_d)
    q = scaled_queries(q, problem.scale, config)
    u = load_tile(inputs.u, batch, head, rows, block.live_queries, config.value_width, config.block_v)
    if config.whole:
        lse, expected, delta = expectation(inputs, u, batch, head, rows, block.live_queries, config)
    else:
        lse = load_vector(inputs.lse, batch, head, rows, block.live_queries, float("inf"))
        delta = load_vector(outputs.delta, batch, head, rows, block.live_queries, 0.0)
    p = recovered_weights(scores(k, tl.trans(q), problem.scale, config), lse[None, :], config)
    b = product(v, tl.trans(u), config)
    if MASKED:
        seen = visible(rows[None, :], block.columns[:, None], block.live_keys, config.causal)
        p = tl.where(seen, p, 0.0)
        b = tl.where(seen, b, delta[None, :])
    ds = p * (b - delta[None, :])
    operand = low(ds, config)
    dv = sums.dv + product(low(p, config), u, config)
    dk = sums.dk + product(operand, q, config)
    if config.whole:
        alive = rows < block.live_queries
        if config.causal:
            k = finite_or_zero(k)
        dq = tl.where(alive[:, None], product(tl.trans(operand), k, config) * problem.scale, 0.0)
        store_tile(outputs.gradients.q, batch, head, rows, problem.queries, dq, config.width, config.block_d)
        if config.statistics:
            advantage = tl.where(seen, b - expected[None, :], 0.0)
            variance = tl.where(alive, tl.sum(p * advantage * advantage, 0), 0.0)
            store_vector(outputs.row_sums.expected, batch, head, rows, problem.queries, expected)
            store_vector(outputs.row_sums.variance, batch, head, rows, problem.queries, variance)
            norm2 = tl.where(alive, tl.sum(ds * ds, 0), 0.0)
            store_vector(outputs.row_sums.score_norm2, batch, head, rows, problem.queries, norm2)
    responsibility, routing, absolute_routing = sums.responsibility, sums.routing, sums.absolute_routing
    if config.statistics:
        responsibility += tl.sum(p, 1)
        routing += tl.sum(ds, 1)
        absolute_routing += tl.sum(tl.abs(ds), 1)
    return ColumnSums(dk, dv, responsibility, routing, absolute_routing)


@triton.jit
def backward_columns_kernel(inputs, outputs, problem, config: tl.constexpr):
    """One block of keys of one key head, with its group of query heads."""
    BLOCK_N: tl.constexpr = config.block_n
    BLOCK_D: tl.constexpr = config.block_d
    BLOCK_V: tl.constexpr = config.block_v
    blocks = tl.cdiv(problem.keys, BLOCK_N)
    if config.whole:
        # No keys at all: dq still has to be written.
        blocks = tl.maximum(blocks, 1)
    batch, key_head = split(tl.program_id(0) // blocks, problem.heads // problem.group)
    # The first blocks of a causal head are seen by the most queries and go first.
    first_column = tl.program_id(0) % blocks * BLOCK_N
    live_queries, live_keys = live_counts(problem, batch, config.causal)
    columns = first_column + tl.arange(0, BLOCK_N)
    alive = columns < live_keys
    zero = tl.full([BLOCK_N], 0.0, tl.float32)
    dk = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    dv = tl.full([BLOCK_N, BLOCK_V], 0.0, tl.float32)
    for member in range(problem.group):
        head = key_head * problem.group + member
        block = Keys(columns, batch, key_head, head, live_queries, live_keys)
        # The norm of dv is each head's own: with statistics every head starts its sum at 0.
        own_dv = dv
        if config.statistics:
            own_dv = tl.full([BLOCK_N, BLOCK_V], 0.0, tl.float32)
        sums = ColumnSums(dk, own_dv, zero, zero, zero)
        sums = walk(sums, block, inputs, outputs, first_column, problem, config)
        dk = sums.dk
        if config.statistics:
            store_column_sums(sums, outputs.column_sums, batch, head, columns, alive, problem.keys)
            dv += sums.dv
        else:
            dv = sums.dv
    if not config.exact:
        dk *= problem.scale
    dk = tl.where(alive[:, None], dk, 0.0)
    dv = tl.where(alive[:, None], dv, 0.0)
    store_tile(outputs.gradients.k, batch, key_head, columns, problem.keys, dk, config.width, BLOCK_D)
    store_tile(outputs.gradients.v, batch, key_head, columns, problem.keys, dv, config.value_width, BLOCK_V)


@triton.jit
def walk(sums, block, inputs, outputs, first_column, problem, config: tl.constexpr):
    """All queries of one head, in order."""
    BLOCK_M: tl.constexpr = config.block_m
    k, v = load_keys(inputs, block, config)
    if config.single:
        sums = add_queries(sums, block, k, v, inputs, outputs, 0, problem, config, True)
    elif config.whole:
        # Over dead rows too: their dq is 0 and has to be written.
        for start in range(0, problem.queries, BLOCK_M):
            sums = add_queries(sums, block, k, v, inputs, outputs, start, problem, config, True)
    else:
        # One loop, masked throughout where causal: a second one without masks costs more registers than it saves work.
        end = tl.where(first_column < block.live_keys, block.live_queries, 0)
        first = 0
        if config.causal:
            first = first_column // BLOCK_M * BLOCK_M
        for start in range(first, end, BLOCK_M):
            sums = add_queries(sums, block, k, v, inputs, outputs, start, problem, config, config.causal)
    return sums


@triton.jit
def store_column_sums(sums, column_sums, batch, head, columns, alive, count):
    """Write one query head's column statistics; 0 for dead keys."""
    responsibility = tl.where(alive, sums.responsibility, 0.0)
    store_vector(column_sums.responsibility, batch, head, columns, count, responsibility)
    store_vector(column_sums.routing, batch, head, columns, count, tl.where(alive, sums.routing, 0.0))
    absolute_routing = tl.where(alive, sums.absolute_routing, 0.0)
    store_vector(column_sums.absolute_routing, batch, head, columns, count, absolute_routing)
    norm = tl.sqrt(tl.sum(sums.dv * sums.dv, 1))
    store_vector(column_sums.value_norm, batch, head, columns, count, tl.where(alive, norm, 0.0))
