"""Bayesian linear regression with a Gaussian prior, one observation at a time.

    w ~ N(0, τ² I),  y_k = w·x_k + ε_k,  ε_k ~ N(0, σ²):   y_k | past, x_k ~ N(m·x_k, s²),  s² = σ² + x_kᵀ Σ x_k,
    and after y_k, with the gain g = Σ x_k / s²:           m ← m + g (y_k − m·x_k),          Σ ← Σ − g (Σ x_k)ᵀ.
The model is Bishop (2006), section 3.3. The update of Σ, a difference of numbers that may be nearly equal, is made on
its factors, where nothing cancels: Bierman (1977), "Factorization methods for discrete sequential estimation", V.3.

The answer alphabet is y cut into C equal bins on ±3·√(σ² + d τ²), the two end bins taking the tails:
    p(bin) = Φ((b − m·x)/s) − Φ((a − m·x)/s).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Regression(NamedTuple):
    """mean (R, L) and variance (R, L) of y_k given the past; log_likelihood (R, L) = ln N(y_k; mean, variance)."""

    mean: Tensor
    variance: Tensor
    log_likelihood: Tensor


def sequential(x: Tensor, y: Tensor, tau: float, sigma: float) -> Regression:
    """x (R, L, d), y (R, L), one floating dtype; tau and sigma > 0, the deviations of weights and noise."""
    rows, length, d = x.shape
    means, variances = [], []  # lists, not slices of a tensor: autograd follows them
    weights = x.new_zeros(rows, d)
    # Σ = U diag(spread) Uᵀ with U unit upper triangular, its columns without the diagonal.
    columns = [x.new_zeros(rows, j) for j in range(d)]
    spread = [x.new_full((rows,), tau**2)] * d
    for k in range(length):
        mean = (weights * x[:, k]).sum(-1)
        seen = [x[:, k, j] + (columns[j] * x[:, k, :j]).sum(-1) for j in range(d)]
        gain, total = x.new_zeros(rows, 0), x.new_full((rows,), sigma**2)
        for j in range(d):
            moved, before = spread[j] * seen[j], total
            total = before + seen[j] * moved
            spread[j] = spread[j] * (before / total)
            old = columns[j]
            columns[j] = old - gain * (seen[j] / before)[:, None]
            gain = torch.cat([gain + old * moved[:, None], moved[:, None]], 1)
        weights = weights + gain * ((y[:, k] - mean) / total)[:, None]
        means.append(mean)
        variances.append(total)
    mean, variance = torch.stack(means, 1), torch.stack(variances, 1)
    log_likelihood = -0.5 * ((y - mean).square() / variance + (2.0 * math.pi * variance).log())
    return Regression(mean, variance, log_likelihood)


def half_range(d: int, tau: float, sigma: float) -> float:
    """3·√(σ² + d τ²): the bins cover ± this, three prior deviations of y on average over x ~ N(0, I)."""
    return 3.0 * math.sqrt(sigma**2 + d * tau**2)


def bin_edges(classes: int, limit: float) -> list[float]:
    """The classes − 1 inner edges −limit + c·(2·limit/classes), c = 1 … classes − 1."""
    return [limit * (2 * c - classes) / classes for c in range(1, classes)]


def bin_of(y: Tensor, edges: Tensor) -> Tensor:
    """Bin of y (…): the number of inner edges ≤ y, int64. A comparison, so exact on every back end."""
    return torch.bucketize(y, edges, right=True)


def binned_normal(mean: Tensor, variance: Tensor, edges: Tensor) -> Tensor:
    """Probabilities (…, C) of the bins with inner edges (C − 1,) under N(mean, variance), each (…).

    A bin on the right of the mean is reflected to the left tail's form ½ erfc, so that no bin is a difference of
    numbers near 1.
    """
    z = (edges - mean[..., None]) / (2.0 * variance[..., None]).sqrt()
    infinity = torch.full_like(z[..., :1], math.inf)
    low, high = torch.cat([-infinity, z], -1), torch.cat([z, infinity], -1)
    right = low > -high
    near, far = torch.where(right, low, -high), torch.where(right, high, -low)
    return 0.5 * (torch.special.erfc(near) - torch.special.erfc(far))
