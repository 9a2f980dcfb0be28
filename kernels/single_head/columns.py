"""A block of keys of one sequence: dk, dv and what the queries make of each key.

    dv_j = Σ_i α_ij u_i     dk_j = scale Σ_i ∂L/∂s_ij q_i     R_j = Σ_i α_ij     G_j = Σ_i ∂L/∂s_ij

After rows.py, which leaves u, lse and E of every query. Tiles are keys by queries, so that the sums over queries stay
within a thread's own rows.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton import softmax
from .._triton.views import load_tile, load_vector, store_tile, store_vector
from .problem import product, scaled_queries
from .rows import visible


class KeySums(NamedTuple):
    """Running sums of a block of keys; the last three move only with statistics."""

    dk: Any
    dv: Any
    mass: Any
    signed: Any
    absolute: Any


@triton.jit
def columns_of(operands, results, extras, e, b, first, problem, config: tl.constexpr):
    """Everything of the block of keys that starts at `first`, written to `results` and `extras`."""
    columns = first + tl.arange(0, config.block)
    k = load_tile(operands.k, e, b, columns, problem.length, config.head, config.block_d)
    v = load_tile(operands.v, e, b, columns, problem.length, config.values, config.block_v)
    zero = tl.full([config.block], 0.0, tl.float32)
    dk = tl.full([config.block, config.block_d], 0.0, tl.float32)
    dv = tl.full([config.block, config.block_v], 0.0, tl.float32)
    sums = KeySums(dk, dv, zero, zero, zero)
    nearest = 0
    if config.causal:
        nearest = first
    for start in range(nearest, problem.length, config.block):
        sums = add_queries(sums, operands, results, e, b, k, v, columns, start, problem, config)
    store_tile(results.dk, e, b, columns, problem.length, sums.dk, config.head, config.block_d)
    store_tile(results.dv, e, b, columns, problem.length, sums.dv, config.values, config.block_v)
    if config.statistics:
        store_vector(extras.mass, e, b, columns, problem.length, sums.mass)
        store_vector(extras.signed, e, b, columns, problem.length, sums.signed)
        store_vector(extras.absolute, e, b, columns, problem.length, sums.absolute)


@triton.jit
def add_queries(sums, operands, results, e, b, k, v, columns, start, problem, config: tl.constexpr):
    """The share of one block of queries."""
    rows = start + tl.arange(0, config.block)
    q = scaled_queries(operands, e, b, rows, problem, config)
    u = load_tile(results.u, e, b, rows, problem.length, config.values, config.block_v)
    # An lse of +inf makes every weight of a row past the end 0.
    lse = load_vector(results.lse, e, b, rows, problem.length, float("inf"))
    expected = load_vector(results.expected, e, b, rows, problem.length, 0.0)
    seen = visible(rows[None, :], columns[:, None], problem.length, config)
    score = product(k, tl.trans(q))
    alpha = tl.where(seen, softmax.exponential(score - lse[None, :], True), 0.0)
    ds = alpha * (product(v, tl.trans(u)) - expected[None, :])
    mass, signed, absolute = sums.mass, sums.signed, sums.absolute
    if config.statistics:
        mass += tl.sum(alpha, 1)
        signed += tl.sum(ds, 1)
        absolute += tl.sum(tl.abs(ds), 1)
    return KeySums(sums.dk + product(ds, q), sums.dv + product(alpha, u), mass, signed, absolute)
