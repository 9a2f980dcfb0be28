"""Launches native.cpp: results of reference.py and of the posteriors made from it, in float32 and float64."""

import ctypes
import functools
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bayesattn_fast.kernels._native import build
from bayesattn_fast.kernels._native.problem import Draw, check, pointer, rows_of

DTYPES = (torch.float32, torch.float64)
# The structs of filter.h, backward.h (what follows the filter's), gaussian.h; sample.h and markov.h (after the draw).
FILTER, UPSTREAM = struct.Struct("=18q"), struct.Struct("=7q")
GAUSSIAN, SAMPLE, MARKOV = struct.Struct("=16q d"), struct.Struct("=9q"), struct.Struct("=11q")


Results = tuple[Tensor, Tensor, Tensor, Tensor]
"""posterior (B, T, S), predictive (B, T, O), log_evidence (B,) and entropy (B, T) of the filter."""


@functools.cache
def library() -> ctypes.CDLL:
    return build.load(Path(__file__).with_name("native.cpp"))


def hmm_filter(
    transition: Tensor,
    emission: Tensor,
    observations: Tensor,
    initial: Tensor,
    lengths: Tensor | None = None,
    validate: bool = True,
    out: Results | None = None,
) -> tuple[Results, int]:
    """The filter, its predictive, evidence and entropy in one pass; shapes as in posteriors.hmm_filter.

    out: contiguous tensors to write to, allocated where there are none. The status has REFUSED where validation found
    a row that is no distribution, IMPOSSIBLE where an observation had probability zero, OUT_OF_RANGE where a symbol is
    none: the caller finds out which.
    """
    batch, length = observations.shape
    states, symbols = emission.shape[-2:]
    new = transition.new_empty
    made = out or (new(batch, length, states), new(batch, length, symbols), new(batch), new(batch, length))
    problem, _kept = _filter_problem(transition, emission, observations, initial, lengths, validate, made)
    status = library().hmm_filter(problem, _is_double(transition))
    return made, check(status, "hmm_filter")


def _filter_problem(  # type: ignore[no-untyped-def]
    transition, emission, observations, initial, lengths, validate, made
) -> tuple[bytes, tuple[Tensor | None, ...]]:
    """The packed struct, and what must stay alive while it is used."""
    batch, length = observations.shape
    states, symbols = emission.shape[-2:]
    (p, p_stride), (e, e_stride), (first, first_stride) = (
        rows_of(x, dims) for x, dims in ((transition, 2), (emission, 2), (initial, 1))
    )
    seen, ends = observations.contiguous(), None if lengths is None else lengths.to(torch.int64).contiguous()
    problem = FILTER.pack(
        *(batch, length, states, symbols, torch.get_num_threads(), validate),
        *map(pointer, (p, e, first)),
        *(p_stride, e_stride, first_stride),
        *map(pointer, (seen, ends, *made)),
    )
    return problem, (p, e, first, seen, ends)


def hmm_filter_backward(
    upstream: tuple[Tensor | None, ...],
    transition: Tensor,
    emission: Tensor,
    observations: Tensor,
    initial: Tensor,
    lengths: Tensor | None,
    posterior: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (B, S, S), (B, S, O), (B, S) of transition, emission and initial, one per sequence.

    upstream: gradients of posterior, predictive, log_evidence and entropy, None where there is none.
    """
    inputs = (transition, emission, observations, initial, lengths)
    known = posterior.contiguous()
    problem, _kept = _filter_problem(*inputs, False, (known, None, None, None))
    batch, (states, symbols) = len(observations), emission.shape[-2:]
    above = [None if u is None else u.to(transition.dtype).contiguous() for u in upstream]
    gradients = (
        transition.new_empty(batch, states, states),
        transition.new_empty(batch, states, symbols),
        transition.new_empty(batch, states),
    )
    u_posterior, u_predictive, u_evidence, u_entropy = map(pointer, above)
    problem += UPSTREAM.pack(u_posterior, u_predictive, u_entropy, u_evidence, *map(pointer, gradients))
    check(library().hmm_filter_backward(problem, _is_double(transition)), "hmm_filter_backward")
    return gradients


class Gaussian(NamedTuple):
    """posterior, predictive (B, T, S), entropy (B, T) of the predictive, log_evidence (B,); status bits."""

    posterior: Tensor
    predictive: Tensor
    entropy: Tensor
    log_evidence: Tensor
    status: int


def gaussian_filter(
    inputs: Tensor, means: Tensor, transition: Tensor, initial: Tensor, noise: float, validate: bool = True
) -> Gaussian:
    """The filter of a chain seen through Gaussian noise; shapes as in posteriors.markov_predictive."""
    batch, length, dimensions = inputs.shape
    states = means.shape[0]
    (p, p_stride), (first, first_stride) = rows_of(transition, 2), rows_of(initial, 1)
    x, mu = inputs.contiguous(), means.contiguous()
    posterior, predictive = (inputs.new_empty(batch, length, states) for _ in range(2))
    entropy, evidence = inputs.new_empty(batch, length), inputs.new_empty(batch)
    problem = GAUSSIAN.pack(
        *(batch, length, states, dimensions, torch.get_num_threads(), validate),
        *map(pointer, (x, mu, p, first)),
        *(p_stride, first_stride),
        *map(pointer, (posterior, predictive, entropy, evidence)),
        noise,
    )
    status = check(library().gaussian_filter(problem, _is_double(inputs)), "gaussian_filter")
    return Gaussian(posterior, predictive, entropy, evidence, status)


def hmm_sample(
    draw: Draw, states: int, symbols: int, observations: int, next_observation: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens (R, N), targets (R, K), predictive (R, K, C) and entropy (R, K) of tunnels.Hmm for R = seeds · size rows.

    next_observation: the answer is the next observation, else the state. Integers equal the reference's; predictive
    and entropy are float64 results rounded once, within one float32 rounding of the reference's.
    """
    rows, k = draw.rows, observations
    length, classes = 3 + states * (states + symbols) + 2 * k, symbols if next_observation else states
    tokens, targets = (torch.empty(rows, n, dtype=torch.int64) for n in (length, k))
    predictive, entropy = torch.empty(rows, k, classes), torch.empty(rows, k)
    problem = draw.pack() + SAMPLE.pack(
        *(states, symbols, k, next_observation, torch.get_num_threads()),
        *map(pointer, (tokens, targets, predictive, entropy)),
    )
    check(library().hmm_sample(problem), "hmm_sample")
    return tokens, targets, predictive, entropy


def markov_sample(
    draw: Draw, length: int, means: Tensor, transition: Tensor, cumulative: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs (R, N, D) float32, targets (R, N), predictive (R, N, S) and entropy (R, N) of tunnels.Markov.

    means (S, D) float32; transition (S, S) float64; cumulative (S, S) int64, rows of weights that end at 2³². Inputs
    and targets equal the reference's bit for bit; predictive and entropy are float64 results rounded once, within one
    float32 rounding of the reference's.
    """
    rows, (states, dimensions) = draw.rows, means.shape
    inputs, targets = torch.empty(rows, length, dimensions), torch.empty(rows, length, dtype=torch.int64)
    predictive, entropy = torch.empty(rows, length, states), torch.empty(rows, length)
    world = tuple(x.contiguous() for x in (means, transition, cumulative))
    problem = draw.pack() + MARKOV.pack(
        *(states, dimensions, length, torch.get_num_threads()),
        *map(pointer, (*world, inputs, targets, predictive, entropy)),
    )
    check(library().markov_sample(problem), "markov_sample")
    return inputs, targets, predictive, entropy


def _is_double(x: Tensor) -> ctypes.c_int64:
    return ctypes.c_int64(x.dtype == torch.float64)
