"""Filtering of hidden Markov models: the forward recursion, normalised at every step.

    a_1(s) ∝ π(s) e_s(o_1),        a_t(s) ∝ e_s(o_t) Σ_r a_{t−1}(r) P(r → s),
    p(o_t | o_<t) = the normaliser of step t,        ln p(o_1..o_T) = Σ_t ln p(o_t | o_<t).
The chain starts in state s_1 ~ π and emits at once: no transition precedes the first observation.
Rabiner (1989), "A tutorial on hidden Markov models", eq. 19–20 with the scaling of section V.A.

Products are summed over small axes by plain reductions, never by a matrix product whose blocking depends on the batch:
a sequence gives the same bits in any batch.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Filtered(NamedTuple):
    """posterior (R, T, S) = p(s_t | o_1..o_t); log_likelihood (R, T) = ln p(o_t | o_<t) in nats."""

    posterior: Tensor
    log_likelihood: Tensor


def filter_likelihoods(transition: Tensor, likelihood: Tensor, initial: Tensor) -> Filtered:
    """The recursion for given likelihoods of the observations in every state.

    transition (R, S, S) or (S, S), rows sum to 1; likelihood (R, T, S) ≥ 0, all ones where nothing was observed;
    initial (R, S) or (S,). An observation that no reachable state can emit has log-likelihood −inf, and the filter
    goes on as if it had not been made.
    """
    rows, length, states = likelihood.shape
    posterior, normaliser = [], []  # lists, not slices of a tensor: autograd follows them
    prior = initial.expand(rows, states)
    for t in range(length):
        joint = prior * likelihood[:, t]
        total = joint.sum(-1, keepdim=True)
        posterior.append(_normalised(joint, total, prior))
        normaliser.append(total)
        prior = propagate(posterior[t], transition)
    return Filtered(torch.stack(posterior, 1), torch.cat(normaliser, 1).log())


def _normalised(joint: Tensor, total: Tensor, otherwise: Tensor) -> Tensor:
    """joint / total, or `otherwise` where total is 0 (whose gradient is then that of `otherwise`, not NaN)."""
    possible = total > 0
    return torch.where(possible, joint / torch.where(possible, total, 1.0), otherwise)


def propagate(belief: Tensor, matrix: Tensor) -> Tensor:
    """Σ_r belief(…, r) matrix(…, r, s): belief (…, R), matrix (…, R, S) to (…, S).

    The same product takes a belief over states to one over observations when given the emission matrix.
    """
    return (belief[..., None] * matrix).sum(-2)


def discrete_likelihoods(emission: Tensor, observations: Tensor) -> Tensor:
    """e_s(o_t): emission (R, S, O) or (S, O), observations (R, T) int64, −1 = missing; returns (R, T, S)."""
    rows, length = observations.shape
    states, symbols = emission.shape[-2:]
    by_symbol = emission.mT.expand(rows, symbols, states)
    index = observations.clamp_min(0)[..., None].expand(rows, length, states)
    return torch.where(observations[..., None] < 0, 1.0, by_symbol.gather(1, index))


def gaussian_log_likelihoods(means: Tensor, inputs: Tensor, noise: float) -> Tensor:
    """ln N(x_t; μ_s, noise² I): means (S, d), inputs (R, T, d); returns (R, T, S) in nats."""
    squared = torch.zeros(*inputs.shape[:-1], len(means), dtype=inputs.dtype, device=inputs.device)
    for i in range(inputs.shape[-1]):
        squared += (inputs[..., i : i + 1] - means[:, i]).square()
    return -0.5 * (squared / noise**2 + inputs.shape[-1] * math.log(2.0 * math.pi * noise**2))


def filter_log_likelihoods(transition: Tensor, log_likelihood: Tensor, initial: Tensor) -> Filtered:
    """filter_likelihoods for logarithms (R, T, S) of any size.

    At every step the largest value among states the chain can be in is taken out first, so that a far observation
    never underflows to an impossible one.
    """
    rows, length, states = log_likelihood.shape
    posterior, normaliser = [], []
    prior = initial.expand(rows, states)
    lowest = torch.finfo(log_likelihood.dtype).min
    for t in range(length):
        here = log_likelihood[:, t]
        peak = here.masked_fill(prior == 0, lowest).amax(-1, keepdim=True).clamp_min(lowest)
        # States without prior mass may lie above the peak: their excess must not overflow to inf · 0.
        joint = prior * (here - peak).clamp_max(0.0).exp()
        total = joint.sum(-1, keepdim=True)
        posterior.append(_normalised(joint, total, prior))
        normaliser.append(total.log() + peak)
        prior = propagate(posterior[t], transition)
    return Filtered(torch.stack(posterior, 1), torch.cat(normaliser, 1))
