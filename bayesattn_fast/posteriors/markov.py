"""Exact predictive of a Markov chain seen through Gaussian noise."""

from typing import NamedTuple

from torch import Tensor

from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.kernels.hmm import native, reference
from bayesattn_fast.posteriors import checks
from bayesattn_fast.posteriors.serving import accepted, by_triton, natively


class MarkovPredictive(NamedTuple):
    """What is known after each input x_t = μ_{s_t} + noise."""

    posterior: Tensor
    """(B, T, S): p(s_t | x_1..x_t)."""
    predictive: Tensor
    """(B, T, S): p(s_{t+1} | x_1..x_t) = Σ_r posterior_r transition_rs."""
    entropy: Tensor
    """(B, T): −Σ_s predictive_s log₂ predictive_s, in bits."""
    log_evidence: Tensor
    """(B,): ln p(x_1..x_T), a density, in nats."""


def markov_predictive(
    inputs: Tensor,
    means: Tensor,
    transition: Tensor,
    *,
    noise: float = 1.0,
    initial: Tensor | None = None,
    validate: bool = True,
) -> MarkovPredictive:
    """Predictive of the next symbol of a chain whose symbols s are seen as N(means[s], noise² I).

    inputs (B, T, d); means (S, d); transition (S, S) or (B, S, S), rows sum to 1; initial (S,) or (B, S), the law of
    the first symbol seen, uniform by default. One floating dtype, which the result keeps.
    Raises ValueError naming the first row that does not sum to 1 within 1e-4, the first entry that is not finite, or a
    noise ≤ 0. validate=False checks shapes only.
    The forward recursion with Gaussian emissions, Rabiner (1989); the task is that of arXiv 2512.22473.
    """
    states = means.shape[0]
    if initial is None:
        initial = transition.new_full((states,), 1.0 / states)
    checks.shapes(
        inputs=(inputs, "B T d"),
        means=(means, "S d"),
        transition=(transition, "B S S" if transition.dim() == 3 else "S S"),
        initial=(initial, "B S" if initial.dim() == 2 else "S"),
    )
    checks.floating(inputs=inputs, means=means, transition=transition, initial=initial)
    checks.positive(noise=noise)
    if natively("hmm", inputs, means, transition, initial):
        made = native.gaussian_filter(inputs, means, transition, initial, noise, validate)
        if accepted(made.status, validate=validate):
            return MarkovPredictive(*made[:4])
    if validate:
        checks.finite("inputs", inputs)
        checks.finite("means", means)
        checks.probability_rows("transition", transition)
        checks.probability_rows("initial", initial)
    if by_triton("hmm", inputs, means, transition, initial):
        from bayesattn_fast.kernels.hmm import gaussian

        if states <= gaussian.MOST_STATES:
            return MarkovPredictive(*gaussian.gaussian_filter(inputs, means, transition, initial, noise))
    posterior, log_likelihood = reference.filter_log_likelihoods(
        transition, reference.gaussian_log_likelihoods(means, inputs, noise), initial
    )
    predictive = reference.propagate(posterior, transition.unsqueeze(-3))
    return MarkovPredictive(posterior, predictive, entropy_bits(predictive), log_likelihood.sum(-1))
