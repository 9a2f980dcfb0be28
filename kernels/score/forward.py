"""Every score of reference.py on a GPU, a tile of rows per program: the classes of a row stay in registers."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch
from .reference import Scores

# Elements of one tile; more classes than that are refused.
TILE = 2048
MOST_CLASSES = 8192


class Config(NamedTuple):
    """A tile of block_r rows by block_c ≥ C classes."""

    block_r: int
    block_c: int


class Results(NamedTuple):
    """Pointers of reference.Scores."""

    loss: Tensor
    sampled_loss: Tensor
    entropy_bits: Tensor
    kl: Tensor
    tvd: Tensor
    accuracy: Tensor
    impossible_mass: Tensor


@triton.jit
def score_kernel(logits, p, targets, results, rows, classes, config: tl.constexpr):
    LOG2E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64) * config.block_r + tl.arange(0, config.block_r)
    column = tl.arange(0, config.block_c)[None, :]
    live = row < rows
    mask = live[:, None] & (column < classes)
    at = row[:, None] * classes + column
    x = tl.load(logits + at, mask, other=float("-inf")).to(tl.float32)
    truth = tl.load(p + at, mask, other=0.0).to(tl.float32)
    answer = tl.load(targets + row, live, other=0)
    peak = tl.max(x, 1)
    d = tl.where(mask, x - peak[:, None], float("-inf"))
    e = tl.exp(d)
    total = tl.sum(e, 1)
    log_total = tl.log(total)
    # NaN logits must reach the results, whatever max makes of them.
    q = e / total[:, None]
    log_q = d - log_total[:, None]
    allowed = truth != 0
    broken = total != total
    loss = -tl.sum(tl.where(allowed, truth * log_q, 0.0), 1)
    entropy = -tl.sum(tl.where(e == 0, 0.0, q * log_q), 1) * LOG2E
    divergence = tl.sum(tl.where(allowed, truth * (tl.log(tl.where(allowed, truth, 1.0)) - log_q), 0.0), 1) * LOG2E
    apart = 0.5 * tl.sum(tl.where(mask, tl.abs(truth - q), 0.0), 1)
    impossible = tl.sum(tl.where(mask & ~allowed, q, 0.0), 1)
    own = column == answer[:, None]
    best = mask & (x == peak[:, None])
    ties = tl.sum(best.to(tl.float32), 1)
    hit = tl.sum((best & own).to(tl.float32), 1) / tl.where(broken, 1.0, ties)
    tl.store(results.loss + row, tl.where(broken, total, loss), live)
    tl.store(results.sampled_loss + row, tl.where(broken, total, -tl.sum(tl.where(own, log_q, 0.0), 1)), live)
    tl.store(results.entropy_bits + row, tl.where(broken, total, tl.maximum(entropy, 0.0)), live)
    tl.store(results.kl + row, tl.where(broken, total, divergence), live)
    tl.store(results.tvd + row, tl.where(broken, total, apart), live)
    tl.store(results.accuracy + row, tl.where(broken, total, hit), live)
    tl.store(results.impossible_mass + row, tl.where(broken, total, impossible), live)


def score(logits: Tensor, p: Tensor, targets: Tensor) -> Scores:
    """All scores in float32 of logits and p (…, C), targets (…) int64. ValueError for more than 8,192 classes."""
    classes = logits.shape[-1]
    if classes > MOST_CLASSES:
        raise ValueError(f"the score kernel takes at most {MOST_CLASSES} classes; got {classes}")
    rows = logits.numel() // classes
    block_c = triton.next_power_of_2(classes)
    config = Config(max(1, TILE // block_c), block_c)
    made = Results(*(torch.empty(targets.shape, dtype=torch.float32, device=logits.device) for _ in range(7)))
    launch(
        *(score_kernel, triton.cdiv(rows, config.block_r)),
        *(logits.contiguous(), p.contiguous(), targets.contiguous(), made, rows, classes),
        config=config,
        resources=Resources(4 if block_c <= TILE else 8, 1, 255),
        device=logits.device,
    )
    return Scores(*made)
