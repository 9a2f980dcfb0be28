"""Many heads trained on a GPU: one program a seed, one launch for as many steps as lie between two records.

    q, k, v = x W_Q, x W_K, x W_V     then loss and gradients as in step.py     W ← W − rate · ∂L/∂W

A program goes through its sequence block by block, so that every seed's steps take no launch and no other seed. What
one part of a step leaves for the next stays in memory linear in N, which caches hold for short sequences; barriers of
the program keep the order. A seed whose loss exceeds the limit stops there, and the others do not wait for it.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import launch
from .._triton.strided import wide
from .._triton.views import Matrices, load_tile, load_vector, matrices, store_tile
from .problem import Operands, Problem, configure, product, target_view, uncrowded
from .reference import Data, record, unfilled
from .step import allocate, attention_cross_entropy, sequence, views


class Training(NamedTuple):
    """x (E, B, N, Dx), the weights (E, 1, Dx, D), rates (E, 4), loss (E, steps + 1) and limit (1,) in float64, and
    span, int32: the first step of the launch, the one after its last, and the one that is not followed by descent."""

    x: Matrices
    w_q: Matrices
    w_k: Matrices
    w_v: Matrices
    rates: Tensor
    loss: Tensor
    loss_row: int
    limit: Tensor
    span: Tensor


@triton.jit
def project(x, w, to, e, b, problem, WIDTH: tl.constexpr, BLOCK: tl.constexpr, config: tl.constexpr):
    """x w of one sequence."""
    inputs = tl.arange(0, config.block_x)
    weight = load_tile(w, e, e * 0, inputs, config.inputs, WIDTH, BLOCK)
    for first in range(0, problem.length, config.block):
        rows = first + tl.arange(0, config.block)
        tile = load_tile(x, e, b, rows, problem.length, config.inputs, config.block_x)
        store_tile(to, e, b, rows, problem.length, product(tile, weight), WIDTH, BLOCK)


@triton.jit
def descend(x, d, w, rate, e, problem, WIDTH: tl.constexpr, BLOCK: tl.constexpr, config: tl.constexpr):
    """w ← w − rate · Σ xᵀ d, over all sequences of a seed."""
    total = tl.full([config.block_x, BLOCK], 0.0, tl.float32)
    for b in range(problem.batch):
        for first in range(0, problem.length, config.block):
            rows = first + tl.arange(0, config.block)
            tile = load_tile(x, e, b, rows, problem.length, config.inputs, config.block_x)
            total += product(tl.trans(tile), load_tile(d, e, b, rows, problem.length, WIDTH, BLOCK))
    inputs = tl.arange(0, config.block_x)
    weight = load_tile(w, e, e * 0, inputs, config.inputs, WIDTH, BLOCK)
    store_tile(w, e, e * 0, inputs, config.inputs, weight - rate * total, WIDTH, BLOCK)


@triton.jit
def descend_readout(dw, w, rate, e, problem, config: tl.constexpr):
    """The same for w_out, whose gradient comes in shares."""
    total = tl.full([config.block_v, config.block_c], 0.0, tl.float32)
    values = tl.arange(0, config.block_v)
    for b in range(problem.batch):
        for share in range(tl.cdiv(problem.length, config.block)):
            start = share * config.values
            rows = start + values
            total += load_tile(dw, e, b, rows, start + config.values, config.classes, config.block_c)
    weight = load_tile(w, e, e * 0, values, config.values, config.classes, config.block_c)
    store_tile(w, e, e * 0, values, config.values, weight - rate * total, config.classes, config.block_c)


@triton.jit
def mean_loss(nll, e, problem, config: tl.constexpr):
    """The mean over all positions of a seed, in float64."""
    total = tl.full([config.block], 0.0, tl.float64)
    for b in range(problem.batch):
        for first in range(0, problem.length, config.block):
            rows = first + tl.arange(0, config.block)
            total += load_vector(nll, e, b, rows, problem.length, 0.0).to(tl.float64)
    return tl.sum(total, 0) / (problem.batch * problem.length)


@triton.jit
def train_kernel(training, operands, results, problem, config: tl.constexpr):
    """One seed, from the first step of the span to its end or to where its loss leaves the limit."""
    e = wide(tl.program_id(0))
    t = tl.load(training.span)
    last = tl.load(training.span + 1)
    end = tl.load(training.span + 2)
    limit = tl.load(training.limit)
    losses = training.loss + e * training.loss_row
    before = tl.load(losses + t - 1, mask=t > 0, other=0.0)
    # Not `before > limit`: NaN is a loss that left it.
    last = tl.where((t == 0) | (before <= limit), last, t)
    while t < last:
        for b in range(problem.batch):
            at = wide(b)
            project(training.x, training.w_q, operands.q, e, at, problem, config.head, config.block_d, config)
            project(training.x, training.w_k, operands.k, e, at, problem, config.head, config.block_d, config)
            project(training.x, training.w_v, operands.v, e, at, problem, config.values, config.block_v, config)
        tl.debug_barrier()
        for b in range(problem.batch):
            sequence(operands, results, None, e, wide(b), problem, config)
        tl.debug_barrier()
        loss = mean_loss(results.nll, e, problem, config)
        tl.store(losses + t, loss)
        last = tl.where(loss <= limit, last, t)
        if (t < last) & (t < end):
            rates = training.rates + 4 * e
            q, k, v = tl.load(rates), tl.load(rates + 1), tl.load(rates + 2)
            descend(training.x, results.dq, training.w_q, q, e, problem, config.head, config.block_d, config)
            descend(training.x, results.dk, training.w_k, k, e, problem, config.head, config.block_d, config)
            descend(training.x, results.dv, training.w_v, v, e, problem, config.values, config.block_v, config)
            descend_readout(results.dw_out, operands.w_out, tl.load(rates + 3), e, problem, config)
        tl.debug_barrier()
        t += 1


def train_single_head(
    x: Tensor,
    targets: Tensor,
    weights: Sequence[Tensor],
    rates: Tensor,
    steps: int,
    every: int,
    limit: float,
    held_out: Data | None,
    causal: bool,
    scale: float,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The contract of reference.py for float32 on a CUDA device and sizes up to problem.WIDEST."""
    seeds, batch, length, inputs = x.shape
    w_q, w_k, w_v, w_out = trained = [w.clone(memory_format=torch.contiguous_format) for w in weights]
    q, k, v = (x.new_empty(seeds, batch, length, w.shape[2]) for w in trained[:3])
    config, resources = configure(q, v, w_out, targets, causal, False, inputs)
    loss, records = unfilled(x, steps, every)
    starts = list(range(0, steps + 1, every))
    # On the device, because the compiler makes another kernel of every other kind of number.
    spans = torch.tensor([(t, min(t + every, steps + 1), steps, 0) for t in starts], dtype=torch.int32, device=x.device)
    rates, at_most = rates.to(x.dtype).contiguous(), x.new_full((1,), limit, dtype=torch.float64)
    operands = Operands._make([*map(matrices, (q, k, v, w_out[:, None])), target_view(targets)])
    results = views(allocate(q, v, w_out, config.block))
    problem = Problem(batch, length, scale, 1.0 / (batch * length))
    for i, first in enumerate(starts):
        noted = record(attention_cross_entropy, (x, targets), held_out, trained, causal, scale)
        given = map(matrices, (x, *(w[:, None] for w in (w_q, w_k, w_v))))
        training = Training._make([*given, rates, loss, steps + 1, at_most, spans[i]])
        launch(
            train_kernel,
            seeds,
            training,
            operands,
            results,
            problem,
            config=config,
            resources=uncrowded(resources),
            device=x.device,
        )
        records[:, i] = torch.where((loss[:, first] <= limit)[:, None], noted, torch.nan)
    return trained, loss, records
