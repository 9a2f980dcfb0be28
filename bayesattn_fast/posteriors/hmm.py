"""Exact filtering of hidden Markov models with discrete observations."""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.kernels.hmm import reference
from bayesattn_fast.posteriors import checks


class HmmFilter(NamedTuple):
    """What is known after each observation; at and past a sequence's length everything is 0."""

    posterior: Tensor
    """(B, T, S): p(s_t | o_1..o_t)."""
    predictive: Tensor
    """(B, T, O): p(o_{t+1} | o_1..o_t) = Σ_rs posterior_r transition_rs emission_so."""
    log_evidence: Tensor
    """(B,): ln p(o_1..o_T) in nats, −inf where the observations are impossible."""
    entropy: Tensor
    """(B, T): −Σ_s posterior_s log₂ posterior_s, in bits."""


def hmm_filter(
    transition: Tensor,
    emission: Tensor,
    observations: Tensor,
    *,
    initial: Tensor | None = None,
    lengths: Tensor | None = None,
    allow_impossible: bool = False,
    validate: bool = True,
) -> HmmFilter:
    """Filtering posterior of a batch of hidden Markov models, each with its own matrices or all with one pair.

    transition (B, S, S) or (S, S), transition[i, j] = p(s_{t+1} = j | s_t = i); emission (B, S, O) or (S, O);
    observations (B, T) int64 in [0, O), −1 where missing; initial (B, S) or (S,), uniform by default: the state
    *before* the first observation, no transition precedes it; lengths (B,) int64 in [1, T] of ragged sequences.
    Any one floating dtype, which the result keeps.
    Raises ValueError naming the first row that does not sum to 1 within 1e-4, the first symbol out of range, or the
    first observation of probability zero; with allow_impossible=True the last gives −inf evidence and is otherwise
    skipped. validate=False checks shapes only and never waits for the device.
    Rabiner (1989), eq. 19–20, normalised at every step.
    """
    batch, states = observations.shape[0], transition.shape[-1]
    if initial is None:
        initial = transition.new_full((states,), 1.0 / states)
    transition_letters, emission_letters = (
        ("B " if matrix.dim() == 3 else "") + letters for matrix, letters in ((transition, "S S"), (emission, "S O"))
    )
    sizes = checks.shapes(
        observations=(observations, "B T"),
        transition=(transition, transition_letters),
        emission=(emission, emission_letters),
        initial=(initial, "B S" if initial.dim() == 2 else "S"),
        **({} if lengths is None else {"lengths": (lengths, "B")}),
    )
    checks.floating(transition=transition, emission=emission, initial=initial)
    if validate:
        checks.probability_rows("transition", transition)
        checks.probability_rows("emission", emission)
        checks.probability_rows("initial", initial)
        checks.symbols("observations", observations, sizes["O"], lowest=-1, meaning=" or be −1 where missing")
        if lengths is not None:
            checks.symbols("lengths", lengths, sizes["T"] + 1, lowest=1)
    inside = torch.ones_like(observations, dtype=torch.bool)
    if lengths is not None:
        inside = torch.arange(sizes["T"], device=lengths.device) < lengths[:, None]
    seen = torch.where(inside, observations, -1)
    posterior, log_likelihood = reference.filter_likelihoods(
        transition, reference.discrete_likelihoods(emission, seen), initial.expand(batch, states)
    )
    if validate and not allow_impossible:
        checks.possible("observations", log_likelihood, observations)
    predictive = reference.propagate(reference.propagate(posterior, transition.unsqueeze(-3)), emission.unsqueeze(-3))
    return HmmFilter(
        posterior=posterior * inside[..., None],
        predictive=predictive * inside[..., None],
        log_evidence=torch.where(seen < 0, 0.0, log_likelihood).sum(-1),
        entropy=entropy_bits(posterior) * inside,
    )
