"""Exact predictive of Bayesian linear regression, as a density and over bins."""

from typing import NamedTuple

from torch import Tensor

from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.kernels.regression import native, reference
from bayesattn_fast.posteriors import checks
from bayesattn_fast.posteriors.serving import accepted, by_triton, natively


class RegressionPredictive(NamedTuple):
    """What is known about y_k given x_k and the pairs before it."""

    mean: Tensor
    """(B, L): m·x_k, m = Σ Xᵀy/σ² and Σ⁻¹ = I/τ² + XᵀX/σ² over the pairs before k."""
    variance: Tensor
    """(B, L): σ² + x_kᵀ Σ x_k."""
    predictive: Tensor
    """(B, L, C): Φ((b − mean)/sd) − Φ((a − mean)/sd) for the bins (a, b)."""
    entropy: Tensor
    """(B, L): −Σ_c predictive_c log₂ predictive_c, in bits."""
    log_evidence: Tensor
    """(B,): Σ_k ln N(y_k; mean_k, variance_k) in nats."""


def regression_predictive(
    x: Tensor, y: Tensor, *, tau: float = 1.0, sigma: float = 0.5, bins: int = 64, validate: bool = True
) -> RegressionPredictive:
    """Predictive of each y given its x and the pairs before, w ~ N(0, tau² I), y = w·x + N(0, sigma²).

    x (B, L, d), y (B, L), one floating dtype, which the result keeps. The bins are equal on ±3·√(sigma² + d·tau²),
    the two end bins take the tails. Raises ValueError naming the argument for tau or sigma ≤ 0, bins < 2, or the first
    entry that is not finite. validate=False checks shapes only.
    Rank-one updates of a factorised covariance (Bierman 1977); Bishop (2006), section 3.3.
    """
    sizes = checks.shapes(x=(x, "B L d"), y=(y, "B L"))
    checks.floating(x=x, y=y)
    checks.positive(tau=tau, sigma=sigma)
    if bins < 2:
        raise ValueError(f"bins must be at least 2; got {bins}")
    edges = reference.bin_edges(bins, reference.half_range(sizes["d"], tau, sigma))
    if natively("regression", x, y):
        *made, status = native.regression(x, y, tau, sigma, edges, validate)
        if accepted(status, validate=validate):
            return RegressionPredictive(*made)
    if validate:
        checks.finite("x", x)
        checks.finite("y", y)
    if by_triton("regression", x, y):
        from bayesattn_fast.kernels.regression import forward

        if forward.takes(sizes["d"], bins):
            return RegressionPredictive(*forward.regression(x, y, tau, sigma, edges))
    mean, variance, log_likelihood = reference.sequential(x, y, tau, sigma)
    predictive = reference.binned_normal(mean, variance, x.new_tensor(edges))
    return RegressionPredictive(mean, variance, predictive, entropy_bits(predictive), log_likelihood.sum(-1))
