"""The bijection tunnel on a GPU: permutations, tokens, targets and the exact answers, straight into their buffers.

Which word decides what is written in bayesattn_fast/tunnels/bijection.py.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch, rows_per_program
from .._triton.philox import Draws, below, names, shuffle, word
from .forward import TILE, store_uniform

MOST_SYMBOLS = 1024


class Config(NamedTuple):
    """block_b rows by block_v ≥ V symbols, and the layout of tunnels.Bijection; stride: tokens from key to key."""

    block_b: int
    block_v: int
    stride: int
    shared_symbols: bool
    with_replacement: bool


class Batch(NamedTuple):
    """tokens (R, N) and targets (R, L) int64; predictive (R, L, V) and entropy (R, L) in bits, float32."""

    tokens: Tensor
    targets: Tensor
    predictive: Tensor
    entropy: Tensor


@triton.jit
def bijection_sample_kernel(draws, made, rows, pairs, symbols, config: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * config.block_b + tl.arange(0, config.block_b)
    v = tl.arange(0, config.block_v)[None, :]
    live = row < rows
    of = names(draws, row, live)
    unused = live[:, None] & (v < symbols)
    seen = unused & (v < 0)
    items = tl.where(unused, v, v)
    pi = shuffle(of, 0, symbols - 1, symbols, items)
    keys = items
    if not config.with_replacement:
        keys = shuffle(of, symbols - 1, pairs, symbols, items)
    shift = 0 if config.shared_symbols else symbols
    for k in range(pairs):
        if config.with_replacement:
            key = below(word(of, symbols - 1 + k), symbols)
        else:
            key = tl.sum(tl.where(v == k, keys, 0), 1)
        asked = v == key[:, None]
        value = tl.sum(tl.where(asked, pi, 0), 1)
        answer = v == value[:, None]
        known = tl.max((seen & asked).to(tl.int32), 1) > 0
        at = row * pairs + k
        store_uniform(made, at, tl.where(known[:, None], answer, unused), live, tl.arange(0, config.block_v), symbols)
        tl.store(made.targets + at, value.to(tl.int64), live)
        token = made.tokens + row * (config.stride * (pairs - 1) + 1) + k * config.stride
        tl.store(token, key.to(tl.int64), live)
        answered = live & (k + 1 < pairs)
        tl.store(token + 1, (value + shift).to(tl.int64), answered)
        if config.stride == 3:
            tl.store(token + 2, row * 0 + symbols + shift, answered)
        seen = seen | (asked & live[:, None])
        unused = unused & ~answer


def bijection_sample(
    draws: Draws, symbols: int, pairs: int, *, separator: bool, shared_symbols: bool, with_replacement: bool
) -> Batch:
    """A batch of tunnels.Bijection, R = seeds · size rows on the seeds' device: the reference's bits."""
    rows, stride = len(draws.seeds) * draws.size, 3 if separator else 2
    block_v = triton.next_power_of_2(symbols)
    block_b = rows_per_program(rows, TILE // block_v)
    config = Config(block_b, block_v, stride, shared_symbols, with_replacement)
    device = draws.seeds.device
    tokens, targets = (
        torch.empty(rows, n, dtype=torch.int64, device=device) for n in (stride * (pairs - 1) + 1, pairs)
    )
    predictive, entropy = (torch.empty(rows, pairs, *rest, device=device) for rest in ((symbols,), ()))
    made = Batch(tokens, targets, predictive, entropy)
    launch(
        *(bijection_sample_kernel, triton.cdiv(rows, block_b), draws, made, rows, pairs, symbols),
        config=config,
        resources=Resources(1 if block_b * block_v <= TILE // 4 else 4, 1, 255),
        device=device,
    )
    return made
