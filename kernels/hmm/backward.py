"""Gradients of the filter's results on a GPU: the reverse mode of backward.h, a few sequences per program.

With c_t the normaliser, w_t = 1 where step t was observed, g the gradient of the evidence and ā that of a:
    b_t = g w_t + ā_t − Σ_s ā_t(s) a_t(s),    j̄_t = b_t / c_t,    prior̄_t = j̄_t e(o_t) + q̄_t,    ē_s(o_t) += j̄_t prior_t
    P̄_rs += a_{t−1}(r) prior̄_t(s),            ā_{t−1} += P prior̄_t,                              initial: prior̄_1
and, of the results themselves, q̄ = E ū and Ē += q ū of the predictive q E, ā −= (log2 a + 1/ln 2) ū of the entropy.
A step of probability zero, which the filter passes over, passes its gradient on to the prior.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch, rows_per_program

# Entries of both matrices of the sequences of one program; their gradients take as many again.
TILE = 2048
MOST = 8192


class Config(NamedTuple):
    """block_b sequences, block_s ≥ S states, block_o ≥ O symbols; which results have a gradient; whether ragged."""

    block_b: int
    block_s: int
    block_o: int
    ragged: bool
    of_posterior: bool
    of_predictive: bool
    of_evidence: bool
    of_entropy: bool


class Problem(NamedTuple):
    """What the filter was given, contiguous, and its posterior; batch strides are 0 where one serves all."""

    transition: Tensor
    emission: Tensor
    initial: Tensor
    observations: Tensor
    lengths: Tensor
    posterior: Tensor
    transition_stride: int
    emission_stride: int
    initial_stride: int
    batch: int
    length: int
    states: int
    symbols: int


class Upstream(NamedTuple):
    """Gradients of the results; the posterior stands in for those that are absent."""

    posterior: Tensor
    predictive: Tensor
    log_evidence: Tensor
    entropy: Tensor


class Gradients(NamedTuple):
    """transition (B, S, S), emission (B, S, O) and initial (B, S), one per sequence."""

    transition: Tensor
    emission: Tensor
    initial: Tensor


@triton.jit
def predictive_terms(u, post, d_post, p, e, d_p, d_e):
    """What the gradient u (B, O) of the predictive adds to those of the posterior and of both matrices."""
    q = tl.sum(post[:, :, None] * p, 1)
    d_q = tl.sum(e * u[:, None, :], 2)
    d_e += q[:, :, None] * u[:, None, :]
    d_p += post[:, :, None] * d_q[:, None, :]
    return d_post + tl.sum(p * d_q[:, None, :], 2), d_p, d_e


@triton.jit
def filter_backward_kernel(problem, upstream, gradients, config: tl.constexpr):
    SMALLEST: tl.constexpr = 1.17549435e-38
    INV_LN2: tl.constexpr = 1.4426950408889634
    S, O = problem.states, problem.symbols
    b = tl.program_id(0).to(tl.int64) * config.block_b + tl.arange(0, config.block_b)
    s, o = tl.arange(0, config.block_s), tl.arange(0, config.block_o)
    live = b < problem.batch
    in_s, in_o = live[:, None] & (s < S)[None, :], live[:, None] & (o < O)[None, :]
    in_p, in_e = in_s[:, :, None] & (s < S)[None, None, :], in_s[:, :, None] & (o < O)[None, None, :]
    cells = (s[:, None] * S + s[None, :])[None]
    p = tl.load(problem.transition + (b * problem.transition_stride)[:, None, None] + cells, in_p, other=0.0)
    rows = problem.emission + (b * problem.emission_stride)[:, None] + (s * O)[None, :]
    e = tl.load(rows[:, :, None] + o[None, None, :], in_e, other=0.0)
    initial = tl.load(problem.initial + (b * problem.initial_stride)[:, None] + s[None, :], in_s, other=0.0)
    end = tl.load(problem.lengths + b, live, other=0) if config.ragged else b * 0 + problem.length
    g = tl.load(upstream.log_evidence + b, live, other=0.0) if config.of_evidence else tl.sum(initial, 1) * 0.0
    d_p, d_e, d_post, d_prior = p * 0.0, e * 0.0, initial * 0.0, initial * 0.0
    for back in range(problem.length):
        t = problem.length - 1 - back
        inside = live & (t < end)
        at = b * problem.length + t
        here = at[:, None] * S + s[None, :]
        kept = in_s & inside[:, None]
        post = tl.load(problem.posterior + here, kept, other=0.0)
        if config.of_posterior:
            d_post += tl.load(upstream.posterior + here, kept, other=0.0)
        if config.of_entropy:
            u = tl.load(upstream.entropy + at, inside, other=0.0)[:, None]
            counts = post >= SMALLEST
            d_post -= tl.where(counts, (tl.log2(tl.where(counts, post, 1.0)) + INV_LN2) * u, 0.0)
        if config.of_predictive:
            u = tl.load(upstream.predictive + at[:, None] * O + o[None, :], in_o & inside[:, None], other=0.0)
            d_post, d_p, d_e = predictive_terms(u, post, d_post, p, e, d_p, d_e)
        before = tl.load(problem.posterior + here - S, kept & (t > 0), other=0.0)
        prior = tl.where(t > 0, tl.sum(before[:, :, None] * p, 1), initial)
        symbol = tl.load(problem.observations + at, inside, other=-1)
        seen = symbol >= 0
        likelihood = tl.load(rows + symbol[:, None], in_s & seen[:, None], other=1.0)
        norm = tl.sum(prior * likelihood, 1)
        possible = norm > 0
        constant = tl.where(seen, g, 0.0) - tl.sum(d_post * post, 1)
        joint = (constant[:, None] + d_post) / tl.where(possible, norm, 1.0)[:, None]
        d_prior = tl.where(kept, tl.where(possible[:, None], joint * likelihood, d_post), 0.0)
        d_seen = tl.where((seen & possible)[:, None], joint * prior, 0.0)
        d_e += tl.where(o[None, None, :] == symbol[:, None, None], d_seen[:, :, None], 0.0)
        d_p += before[:, :, None] * d_prior[:, None, :]
        d_post = tl.sum(p * d_prior[:, None, :], 2)
    tl.store(gradients.transition + (b * S * S)[:, None, None] + cells, d_p, in_p)
    tl.store(gradients.emission + ((b * S)[:, None] + s[None, :])[:, :, None] * O + o[None, None, :], d_e, in_e)
    tl.store(gradients.initial + b[:, None] * S + s[None, :], d_prior, in_s)


def takes(states: int, symbols: int) -> bool:
    """True where both matrices of a sequence and their gradients fit the registers of a program."""
    block_s, block_o = triton.next_power_of_2(states), triton.next_power_of_2(symbols)
    return bool(block_s * (block_s + block_o) <= MOST)


def hmm_filter_backward(
    upstream: tuple[Tensor | None, ...],
    transition: Tensor,
    emission: Tensor,
    observations: Tensor,
    initial: Tensor,
    lengths: Tensor | None,
    posterior: Tensor,
) -> Gradients:
    """Gradients of every sequence's matrices; upstream: of posterior, predictive, log_evidence, entropy, or None."""
    (batch, length), (states, symbols) = observations.shape, emission.shape[-2:]
    block_s, block_o = triton.next_power_of_2(states), triton.next_power_of_2(symbols)
    one = block_s * (block_s + block_o)
    block_b = rows_per_program(batch, TILE // one)
    p, e, first, seen, known = (x.contiguous() for x in (transition, emission, initial, observations, posterior))
    ends = seen if lengths is None else lengths.contiguous()
    p_stride, e_stride, first_stride = (
        x.stride(0) if x.dim() == own + 1 else 0 for x, own in ((p, 2), (e, 2), (first, 1))
    )
    strides = p_stride, e_stride, first_stride
    problem = Problem(p, e, first, seen, ends, known, *strides, batch, length, states, symbols)
    new = transition.new_empty
    made = Gradients(new(batch, states, states), new(batch, states, symbols), new(batch, states))
    given = (known if u is None else u.float().contiguous() for u in upstream)
    launch(
        *(filter_backward_kernel, triton.cdiv(batch, block_b), problem, Upstream(*given), made),
        config=Config(block_b, block_s, block_o, lengths is not None, *(u is not None for u in upstream)),
        resources=Resources(1 if block_b * one <= TILE // 4 else 4 if one <= TILE else 8, 1, 255),
        device=transition.device,
    )
    return made
