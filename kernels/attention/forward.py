"""Forward attention on a GPU: o_i = Σ_j softmax_j(scale q_i·k_j) v_j, its lse, and on request its routing statistics.

One program holds a block of queries of one head and walks over the head's keys with an online softmax
(Dao et al. 2022); short heads fit one tile and take no loop. The grid is flat: batch × heads × query blocks.
The contract of `forward` is that of reference.py.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton import softmax
from .._triton.finite import NEVER, finite_or_zero, first_bad_row
from .._triton.launch import launch
from .._triton.views import Vectors, load_tile, matrices, split, store_tile, store_vector, vectors
from . import tiles
from .layout import like_heads
from .problem import config, live_counts, low, problem, product, scaled_queries, scores, visible
from .results import AttentionForward


class Outputs(NamedTuple):
    """Where the per-row results go; the last three are None without statistics."""

    lse: Vectors
    entropy: Vectors | None
    max_weight: Vectors | None
    argmax: Vectors | None


class Block(NamedTuple):
    """One program's queries: the tile, their row numbers, which head, and how many of its keys are live."""

    q: Any
    rows: Any
    batch: Any
    key_head: Any
    live_keys: Any


class Sums(NamedTuple):
    """Running softmax, unnormalised output, and the first key seen whose value is not finite."""

    state: Any
    mixed: Any
    first_bad: Any


@triton.jit
def take_in(sums, block, k, v, start, scale, config: tl.constexpr, MASKED: tl.constexpr):
    """One tile of keys: its scores, their weights, and their share of the output."""
    columns = start + tl.arange(0, config.block_n)
    keys = load_tile(k, block.batch, block.key_head, columns, block.live_keys, config.width, config.block_d)
    values = load_tile(v, block.batch, block.key_head, columns, block.live_keys, config.value_width, config.block_v)
    score = scores(block.q, tl.trans(keys), scale, config)
    first_bad = sums.first_bad
    if MASKED:
        score = tl.where(
            visible(block.rows[:, None], columns[None, :], block.live_keys, config.causal), score, float("-inf")
        )
        if config.causal:
            first_bad = tl.minimum(first_bad, first_bad_row(values, columns))
            values = finite_or_zero(values)
    state, weights, decay = softmax.update(sums.state, score, columns, config.exact, config.statistics)
    mixed = product(low(weights, config), values, config)
    if not config.whole:
        mixed += sums.mixed * decay[:, None]
    return Sums(state, mixed, first_bad)


@triton.jit
def forward_kernel(q, k, v, o, outputs, problem, config: tl.constexpr):
    """One block of queries of one head."""
    BLOCK_M: tl.constexpr = config.block_m
    BLOCK_N: tl.constexpr = config.block_n
    BLOCK_V: tl.constexpr = config.block_v
    blocks = tl.cdiv(problem.queries, BLOCK_M)
    index = tl.program_id(0) // blocks
    # The last blocks of a causal head have the most keys: they go first.
    first_row = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    batch, head = split(index, problem.heads)
    live_queries, live_keys = live_counts(problem, batch, config.causal)
    rows = first_row + tl.arange(0, BLOCK_M)
    queries = load_tile(q, batch, head, rows, live_queries, config.width, config.block_d)
    block = Block(scaled_queries(queries, problem.scale, config), rows, batch, head // problem.group, live_keys)
    mixed = tl.full([BLOCK_M, BLOCK_V], 0.0, tl.float32)
    sums = Sums(softmax.start(BLOCK_M), mixed, tl.full([], NEVER, tl.int32))
    if config.whole:
        sums = take_in(sums, block, k, v, 0, problem.scale, config, True)
    else:
        end = tl.where(first_row < live_queries, live_keys, 0)
        unmasked = end // BLOCK_N * BLOCK_N
        if config.causal:
            end = tl.minimum(end, first_row + BLOCK_M)
            unmasked = tl.minimum(unmasked, (first_row + 1) // BLOCK_N * BLOCK_N)
        for start in range(0, unmasked, BLOCK_N):
            sums = take_in(sums, block, k, v, start, problem.scale, config, False)
        for start in range(unmasked, end, BLOCK_N):
            sums = take_in(sums, block, k, v, start, problem.scale, config, True)
    store_results(sums, o, outputs, rows, batch, head, live_queries, problem.queries, config)


@triton.jit
def store_results(sums, o, outputs, rows, batch, head, live_queries, queries, config: tl.constexpr):
    """Normalise and write one block of rows; dead rows get o = 0, lse = −inf, statistics 0 and argmax −1."""
    state = sums.state
    dead = (rows >= live_queries) | (state.total == 0)
    mixed = sums.mixed * (1.0 / tl.where(dead, 1.0, state.total))[:, None]
    if config.causal:
        mixed = tl.where((rows >= sums.first_bad)[:, None], float("nan"), mixed)
    mixed = tl.where(dead[:, None], 0.0, mixed)
    store_tile(o, batch, head, rows, queries, mixed, config.value_width, config.block_v)
    store_vector(outputs.lse, batch, head, rows, queries, softmax.log_sum_exp(state, dead, config.exact))
    if config.statistics:
        store_vector(outputs.entropy, batch, head, rows, queries, softmax.entropy(state, dead, config.exact))
        store_vector(outputs.max_weight, batch, head, rows, queries, tl.where(dead, 0.0, 1.0 / (1.0 + state.rest)))
        store_vector(outputs.argmax, batch, head, rows, queries, tl.where(dead, -1, state.argmax))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    statistics: bool,
    tf32: bool = False,
    schedule: tiles.Schedule | None = None,
) -> AttentionForward:
    """Softmax attention, float32, float16 or bfloat16, on a CUDA device; see reference.py for the contract.

    `schedule` forces the tiles instead of taking them from the table. Raises TypeError for another dtype.
    """
    b, h, n_q, _ = q.shape
    settings = config(q, v, causal, statistics, tf32)
    if schedule is None:
        schedule = tiles.forward_schedule(q, k, v, tf32=tf32)
    settings = tiles.apply(settings, schedule, n_q, k.shape[2])
    o = like_heads(q, v.shape[3])

    def per_row(dtype: torch.dtype) -> Tensor:
        return q.new_empty(b, h, n_q, dtype=dtype)

    lse = per_row(torch.float32)
    others = (per_row(torch.float32), per_row(torch.float32), per_row(torch.int32)) if statistics else (None,) * 3
    launch(
        forward_kernel,
        b * h * triton.cdiv(n_q, schedule.block_m),
        matrices(q),
        matrices(k),
        matrices(v),
        matrices(o),
        Outputs(vectors(lse), *(None if other is None else vectors(other) for other in others)),
        problem(q, k, scale, lengths, query_lengths),
        config=settings,
        resources=schedule.resources,
        device=q.device,
    )
    return AttentionForward(o, lse, *others)
