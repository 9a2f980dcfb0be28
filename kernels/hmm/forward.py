"""The filter of reference.py on a GPU: a few sequences per program, their matrices in registers, step after step."""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch, rows_per_program

# Entries of both matrices of the sequences of one program: what fits the registers of four warps.
TILE = 4096
# Entries of one sequence's matrices, padded, beyond which the reference has to serve.
MOST = 16384


class Config(NamedTuple):
    """block_b sequences, block_s ≥ S states, block_o ≥ O symbols; whether lengths are given."""

    block_b: int
    block_s: int
    block_o: int
    ragged: bool


class Problem(NamedTuple):
    """Pointers, batch strides (0 where one matrix serves all) and sizes; matrices are contiguous otherwise."""

    transition: Tensor
    emission: Tensor
    initial: Tensor
    observations: Tensor
    lengths: Tensor
    transition_stride: int
    emission_stride: int
    initial_stride: int
    batch: int
    length: int
    states: int
    symbols: int


class Results(NamedTuple):
    """posterior (B, T, S), predictive (B, T, O), log_evidence (B,), entropy (B, T), float32."""

    posterior: Tensor
    predictive: Tensor
    log_evidence: Tensor
    entropy: Tensor


@triton.jit
def filter_kernel(problem, results, config: tl.constexpr):
    S, O = problem.states, problem.symbols
    b = tl.program_id(0).to(tl.int64) * config.block_b + tl.arange(0, config.block_b)
    s, o = tl.arange(0, config.block_s), tl.arange(0, config.block_o)
    live, state, symbol = b < problem.batch, s < S, o < O
    in_s = live[:, None] & state[None, :]
    in_o = live[:, None] & symbol[None, :]
    cells = s[:, None] * S + s[None, :]
    p_at = problem.transition + (b * problem.transition_stride)[:, None, None] + cells[None]
    p = tl.load(p_at, in_s[:, :, None] & state[None, None, :], other=0.0)
    rows = problem.emission + (b * problem.emission_stride)[:, None] + (s * O)[None, :]
    e = tl.load(rows[:, :, None] + o[None, None, :], in_s[:, :, None] & symbol[None, None, :], other=0.0)
    prior = tl.load(problem.initial + (b * problem.initial_stride)[:, None] + s[None, :], in_s, other=0.0)
    evidence = tl.sum(prior, 1).to(tl.float64) * 0.0
    end = tl.load(problem.lengths + b, live, other=0) if config.ragged else b * 0 + problem.length
    for t in range(problem.length):
        inside = live & (t < end)
        seen = tl.load(problem.observations + b * problem.length + t, inside, other=-1)
        known = seen >= 0
        likelihood = tl.load(rows + seen[:, None], in_s & known[:, None], other=1.0)
        joint = prior * likelihood
        total = tl.sum(joint, 1)
        possible = (total > 0)[:, None]
        belief = tl.where(possible, joint / tl.where(possible, total[:, None], 1.0), prior)
        evidence += tl.where(known, tl.log(total), 0.0).to(tl.float64)
        prior = tl.sum(belief[:, :, None] * p, 1)
        predictive = tl.sum(prior[:, :, None] * e, 1)
        bits = -tl.sum(tl.where(belief > 0, belief * tl.log2(tl.where(belief > 0, belief, 1.0)), 0.0), 1)
        at = b * problem.length + t
        tl.store(results.posterior + at[:, None] * S + s[None, :], tl.where(inside[:, None], belief, 0.0), in_s)
        tl.store(results.predictive + at[:, None] * O + o[None, :], tl.where(inside[:, None], predictive, 0.0), in_o)
        tl.store(results.entropy + at, tl.where(inside, tl.maximum(bits, 0.0), 0.0), live)
    tl.store(results.log_evidence + b, evidence.to(tl.float32), live)


def takes(states: int, symbols: int) -> bool:
    """True where both matrices of a sequence fit the registers of a program."""
    block_s, block_o = triton.next_power_of_2(states), triton.next_power_of_2(symbols)
    return bool(block_s * (block_s + block_o) <= MOST)


def hmm_filter(
    transition: Tensor, emission: Tensor, observations: Tensor, initial: Tensor, lengths: Tensor | None = None
) -> Results:
    """Results in float32 for float32 matrices; shapes as in posteriors.hmm_filter, initial (B, S) or (S,).

    Symbols must lie in [−1, O) and lengths in [1, T]: the caller has checked them.
    """
    (batch, length), (states, symbols) = observations.shape, emission.shape[-2:]
    block_s, block_o = triton.next_power_of_2(states), triton.next_power_of_2(symbols)
    one = 2 * block_s * (block_s + block_o)
    block_b = rows_per_program(batch, TILE // one)
    config = Config(block_b, block_s, block_o, lengths is not None)
    p, e, first = transition.contiguous(), emission.contiguous(), initial.contiguous()
    p_stride, e_stride = (x.stride(0) if x.dim() == 3 else 0 for x in (p, e))
    first_stride = first.stride(0) if first.dim() == 2 else 0
    seen = observations.contiguous()
    ends = seen if lengths is None else lengths.to(torch.int64).contiguous()
    new = transition.new_empty
    made = Results(new(batch, length, states), new(batch, length, symbols), new(batch), new(batch, length))
    problem = Problem(p, e, first, seen, ends, p_stride, e_stride, first_stride, batch, length, states, symbols)
    launch(
        *(filter_kernel, triton.cdiv(batch, config.block_b), problem, made),
        config=config,
        resources=Resources(1 if block_b * one <= TILE // 4 else 4 if one <= TILE else 8, 1, 255),
        device=transition.device,
    )
    return made
