"""The filter of a chain seen through Gaussian noise on a GPU: a few sequences per program, step after step.

    ln e_s(x_t) = −|x_t − μ_s|²/(2 noise²) + constant,  whose largest value among reachable states is taken out first
as in reference.filter_log_likelihoods; the evidence is summed in float64.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch, rows_per_program

# Squared differences of the sequences of one program held at a time: what fits the registers of four warps.
TILE = 4096
# A transition matrix stays in registers.
MOST_STATES = 128


class Config(NamedTuple):
    """block_b sequences, block_s ≥ S states, block_d dimensions at a time."""

    block_b: int
    block_s: int
    block_d: int


class Problem(NamedTuple):
    """Pointers, batch strides (0 where one serves all) and sizes; scale is −1/(2 noise²), constant in nats."""

    inputs: Tensor
    means: Tensor
    transition: Tensor
    initial: Tensor
    transition_stride: int
    initial_stride: int
    batch: int
    length: int
    states: int
    dimensions: int
    scale: float
    constant: float


class Results(NamedTuple):
    """posterior and predictive (B, T, S), entropy (B, T) of the predictive, log_evidence (B,), float32."""

    posterior: Tensor
    predictive: Tensor
    entropy: Tensor
    log_evidence: Tensor


@triton.jit
def squared_distances(problem, b, t, live, s, config: tl.constexpr):
    """|x_t − μ_s|² of every sequence and state, a block of dimensions at a time."""
    D = problem.dimensions
    B: tl.constexpr = config.block_b
    S: tl.constexpr = config.block_s
    total = tl.zeros([B, S], tl.float32)
    x_at = problem.inputs + (b * problem.length + t) * D
    for first in range(0, D, config.block_d):
        i = first + tl.arange(0, config.block_d)
        x = tl.load(x_at[:, None] + i[None, :], live[:, None] & (i < D)[None, :], other=0.0)
        means = problem.means + s[:, None] * D + i[None, :]
        mu = tl.load(means, (s < problem.states)[:, None] & (i < D)[None, :], other=0.0)
        difference = x[:, None, :] - mu[None]
        total += tl.sum(difference * difference, 2)
    return total


@triton.jit
def gaussian_filter_kernel(problem, results, config: tl.constexpr):
    LOWEST: tl.constexpr = -3.4028234663852886e38
    S = problem.states
    b = tl.program_id(0).to(tl.int64) * config.block_b + tl.arange(0, config.block_b)
    s = tl.arange(0, config.block_s)
    live, state = b < problem.batch, s < S
    mask = live[:, None] & state[None, :]
    cells = (s[:, None] * S + s[None, :])[None]
    p_at = problem.transition + (b * problem.transition_stride)[:, None, None] + cells
    p = tl.load(p_at, mask[:, :, None] & state[None, None, :], other=0.0)
    prior = tl.load(problem.initial + (b * problem.initial_stride)[:, None] + s[None, :], mask, other=0.0)
    evidence = tl.sum(prior, 1).to(tl.float64) * 0.0
    for t in range(problem.length):
        log_likelihood = problem.scale * squared_distances(problem, b, t, live, s, config)
        peak = tl.max(tl.where(prior == 0, LOWEST, log_likelihood), 1)
        peak = tl.maximum(peak, LOWEST)
        # States without prior mass may lie above the peak: their excess must not overflow to inf · 0.
        joint = prior * tl.exp(tl.minimum(log_likelihood - peak[:, None], 0.0))
        total = tl.sum(joint, 1)
        possible = (total > 0)[:, None]
        belief = tl.where(possible, joint / tl.where(possible, total[:, None], 1.0), prior)
        evidence += tl.log(total).to(tl.float64) + peak.to(tl.float64) + problem.constant
        prior = tl.sum(belief[:, :, None] * p, 1)
        bits = -tl.sum(tl.where(prior > 0, prior * tl.log2(tl.where(prior > 0, prior, 1.0)), 0.0), 1)
        at = b * problem.length + t
        tl.store(results.posterior + at[:, None] * S + s[None, :], belief, mask)
        tl.store(results.predictive + at[:, None] * S + s[None, :], prior, mask)
        tl.store(results.entropy + at, tl.maximum(bits, 0.0), live)
    tl.store(results.log_evidence + b, evidence.to(tl.float32), live)


def gaussian_filter(inputs: Tensor, means: Tensor, transition: Tensor, initial: Tensor, noise: float) -> Results:
    """Results in float32 for float32 tensors; shapes as in posteriors.markov_predictive, at most MOST_STATES states."""
    (batch, length, d), states = inputs.shape, means.shape[0]
    block_s, block_d = triton.next_power_of_2(states), min(triton.next_power_of_2(d), 32)
    one = block_s * max(block_s, block_d)
    block_b = rows_per_program(batch, TILE // one)
    size = block_b * one
    warps = 1 if size <= TILE // 4 else 4 if size <= TILE else 8
    x, mu, p, first = (tensor.contiguous() for tensor in (inputs, means, transition, initial))
    new = inputs.new_empty
    made = Results(new(batch, length, states), new(batch, length, states), new(batch, length), new(batch))
    problem = Problem(
        *(x, mu, p, first),
        *(p.stride(0) if p.dim() == 3 else 0, first.stride(0) if first.dim() == 2 else 0),
        *(batch, length, states, d),
        *(-0.5 / noise**2, -0.5 * d * math.log(2.0 * math.pi * noise**2)),
    )
    launch(
        *(gaussian_filter_kernel, triton.cdiv(batch, block_b), problem, made),
        config=Config(block_b, block_s, block_d),
        resources=Resources(warps, 1, 255),
        device=inputs.device,
    )
    return made
