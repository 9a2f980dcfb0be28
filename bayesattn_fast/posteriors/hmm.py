"""Exact filtering of hidden Markov models with discrete observations."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import bayesattn_fast.ops.hmm as ops
from bayesattn_fast.posteriors import checks
from bayesattn_fast.posteriors.serving import accepted, natively


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
    out: HmmFilter | None = None,
) -> HmmFilter:
    """Filtering posterior of a batch of hidden Markov models, each with its own matrices or all with one pair.

    transition (B, S, S) or (S, S), transition[i, j] = p(s_{t+1} = j | s_t = i); emission (B, S, O) or (S, O);
    observations (B, T) int64 in [0, O), −1 where missing; initial (B, S) or (S,), uniform by default: the state
    *before* the first observation, no transition precedes it; lengths (B,) int64 in [1, T] of ragged sequences.
    Any one floating dtype, which the result keeps. out: an earlier result of these sizes to write into, since fresh
    memory costs a large batch as much as the filter does.
    Raises ValueError naming the first row that does not sum to 1 within 1e-4, the first symbol out of range, or the
    first observation of probability zero; with allow_impossible=True the last gives −inf evidence and is otherwise
    skipped. validate=False checks shapes only and never waits for the device.
    Differentiable in transition, emission and initial, entries taken as free numbers; a step of probability zero gives
    its own observation no gradient.
    Rabiner (1989), eq. 19–20, normalised at every step.
    """
    states = transition.shape[-1]
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
    if out is not None:
        _check_out(out, sizes, transition, emission, initial)
    if validate and lengths is not None:
        checks.symbols("lengths", lengths, sizes["T"] + 1, lowest=1)
    if natively("hmm", transition, emission, initial, observations, differentiable=True):
        made, status = ops.hmm_filter(transition, emission, observations, initial, lengths, validate, out)
        if accepted(int(status), validate=validate, allow_impossible=allow_impossible):
            return out or HmmFilter(*made)
    if validate:
        checks.probability_rows("transition", transition)
        checks.probability_rows("emission", emission)
        checks.probability_rows("initial", initial)
        checks.symbols("observations", observations, sizes["O"], lowest=-1, meaning=" or be −1 where missing")
    fields: Sequence[Tensor]
    if ops.by_triton(transition, emission, initial):
        fields, _ = ops.hmm_filter(transition, emission, observations, initial, lengths, False)
        # What is impossible is named by the reference, which looks at every step.
        if not validate or allow_impossible or not bool(fields[2].isneginf().any()):
            return _into(out, fields)
    *fields, log_likelihood = ops.plain_filter(transition, emission, observations, initial, lengths)
    if validate and not allow_impossible:
        checks.possible("observations", log_likelihood, observations)
    return _into(out, fields)


def _into(out: HmmFilter | None, fields: Sequence[Tensor]) -> HmmFilter:
    if out is None:
        return HmmFilter(*fields)
    for field, value in zip(out, fields, strict=True):
        field.copy_(value)
    return out


def _check_out(out: HmmFilter, sizes: dict[str, int], like: Tensor, *inputs: Tensor) -> None:
    b, t, s, o = (sizes[letter] for letter in "BTSO")
    shapes = {"posterior": (b, t, s), "predictive": (b, t, o), "log_evidence": (b,), "entropy": (b, t)}
    for name, shape in shapes.items():
        field = getattr(out, name)
        if (field.shape, field.dtype, field.device) != (shape, like.dtype, like.device) or not field.is_contiguous():
            raise ValueError(
                f"out.{name} must be a contiguous {like.dtype} tensor of shape {shape} on {like.device}; got "
                f"{field.dtype} {tuple(field.shape)} with strides {field.stride()} on {field.device}"
            )
    if torch.is_grad_enabled() and any(x.requires_grad for x in (like, *inputs)):
        raise ValueError("out cannot be given where a gradient is wanted; leave it out or use torch.no_grad()")
