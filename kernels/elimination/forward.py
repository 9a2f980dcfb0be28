"""The predictives of reference.py on a GPU: sequences one pair after another, the alphabet across the lanes."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch, rows_per_program

# Symbols of the sequences, or of the queries, of one program.
TILE = 1024
MOST_SYMBOLS = 4096


class Config(NamedTuple):
    """block_b sequences or queries by block_v ≥ V symbols."""

    block_b: int
    block_v: int


class Bijection(NamedTuple):
    """predictive (R, L, V), entropy (R, L) in bits and log_evidence (R,) in nats."""

    predictive: Tensor
    entropy: Tensor
    log_evidence: Tensor


class Recall(NamedTuple):
    """predictive (R, M, V) and entropy (R, M) in bits."""

    predictive: Tensor
    entropy: Tensor


@triton.jit
def store_uniform(results, at, possible, live, symbol, symbols):
    """Each row's uniform law over its possible symbols and its entropy; NaN where nothing is possible.

    Both are made in float64, where a division is exact to its last bit. Returns the number of possible symbols.
    """
    kind: tl.constexpr = results.predictive.dtype.element_ty
    free = tl.sum(possible.to(tl.int32), 1).to(tl.float64)
    share, nothing = (1.0 / free).to(kind), tl.where(free == 0, float("nan"), 0.0)
    p = tl.where(possible, share[:, None], nothing[:, None])
    to = results.predictive + at[:, None] * symbols + symbol[None, :]
    tl.store(to, p.to(kind), live[:, None] & (symbol < symbols)[None, :])
    tl.store(results.entropy + at, tl.where(free == 0, float("nan"), tl.log2(free)).to(kind), live)
    return free


@triton.jit
def bijection_kernel(keys, values, results, rows, length, symbols, config: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * config.block_b + tl.arange(0, config.block_b)
    symbol = tl.arange(0, config.block_v)
    live = row < rows
    unused = live[:, None] & (symbol < symbols)[None, :]
    value_of = tl.where(unused, -1, -1)
    evidence = tl.sum(value_of, 1).to(tl.float64) * 0.0
    for k in range(length):
        at = row * length + k
        key, value = tl.load(keys + at, live, other=-1), tl.load(values + at, live, other=-1)
        asked, answer = symbol[None, :] == key[:, None], symbol[None, :] == value[:, None]
        known = tl.max(tl.where(asked, value_of, -1), 1)
        possible = tl.where((known >= 0)[:, None], symbol[None, :] == known[:, None], unused)
        free = store_uniform(results, at, possible, live, symbol, symbols)
        consistent = tl.max((possible & answer).to(tl.int32), 1) > 0
        evidence += tl.where(consistent, -tl.log(free), float("-inf"))
        # A pair that contradicts an earlier one is not learnt from.
        value_of = tl.where(asked & consistent[:, None], value.to(tl.int32)[:, None], value_of)
        unused = unused & ~(answer & consistent[:, None])
    tl.store(results.log_evidence + row, evidence.to(results.log_evidence.dtype.element_ty), live)


@triton.jit
def recall_kernel(keys, values, asked, results, stored, queries, symbols, config: tl.constexpr):
    blocks = tl.cdiv(queries, config.block_b)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    query = tl.program_id(0) % blocks * config.block_b + tl.arange(0, config.block_b)
    symbol = tl.arange(0, config.block_v)
    live = query < queries
    wanted = tl.load(asked + row * queries + query, live, other=-1)
    free = live[:, None] & (symbol < symbols)[None, :]
    bound = free & (symbol < 0)[None, :]
    for n in range(stored):
        key, value = tl.load(keys + row * stored + n), tl.load(values + row * stored + n)
        here = (symbol == value)[None, :]
        bound = bound | (here & (wanted == key)[:, None])
        free = free & ~here
    known = tl.max(bound.to(tl.int32), 1) > 0
    store_uniform(results, row * queries + query, tl.where(known[:, None], bound, free), live, symbol, symbols)


def bijection(keys: Tensor, values: Tensor, symbols: int, dtype: torch.dtype = torch.float64) -> Bijection:
    """As reference.bijection, its likelihoods summed; keys and values (R, L) int64 in [0, symbols).

    At most MOST_SYMBOLS symbols. A symbol out of range is never possible.
    """
    rows, length = keys.shape
    block_v = triton.next_power_of_2(symbols)
    new = torch.empty(0, dtype=dtype, device=keys.device).new_empty
    made = Bijection(new(rows, length, symbols), new(rows, length), new(rows))
    config = Config(rows_per_program(rows, TILE // block_v), block_v)
    launch(
        *(bijection_kernel, triton.cdiv(rows, config.block_b)),
        *(keys.contiguous(), values.contiguous(), made, rows, length, symbols),
        config=config,
        resources=_resources(config),
        device=keys.device,
    )
    return made


def recall(
    stored_keys: Tensor, stored_values: Tensor, queries: Tensor, values: int, dtype: torch.dtype = torch.float64
) -> Recall:
    """As reference.recall, with its entropy: stored (R, N), queries (R, M), all int64, at most MOST_SYMBOLS values."""
    (rows, stored), asked = stored_keys.shape, queries.shape[1]
    block_v = triton.next_power_of_2(values)
    config = Config(min(triton.next_power_of_2(asked), max(1, TILE // block_v)), block_v)
    new = torch.empty(0, dtype=dtype, device=queries.device).new_empty
    made = Recall(new(rows, asked, values), new(rows, asked))
    inputs = (x.contiguous() for x in (stored_keys, stored_values, queries))
    launch(
        *(recall_kernel, rows * triton.cdiv(asked, config.block_b)),
        *(*inputs, made, stored, asked, values),
        config=config,
        resources=_resources(config),
        device=queries.device,
    )
    return made


def _resources(config: Config) -> Resources:
    size = config.block_b * config.block_v
    return Resources(1 if size <= TILE // 4 else 4 if size <= TILE else 8, 1, 255)
