"""Is one group better than another: paired tests over seeds with Holm's correction, and probability of improvement.

P(X > Y) = mean over tasks of  Σ_ij [x_i > y_j] + ½ [x_i = y_j]  / (n m)        Agarwal et al. (2021), eq. 2
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .estimates import Estimate, Strata, bootstrap, checked

PAIR_RESAMPLES = 2000


class Paired(NamedTuple):
    """Difference of two groups on the same seeds."""

    difference: Estimate
    """Mean of a − b with its 95 % t-interval."""
    p_t: float
    """Two-sided paired t-test."""
    p_wilcoxon: float
    """Two-sided Wilcoxon signed-rank test; NaN where all differences are zero."""
    effect: float
    """Cohen's d: mean over standard deviation of the differences."""


def paired(a: NDArray[np.float64], b: NDArray[np.float64]) -> Paired:
    """Paired comparison of a and b (seeds,), entry for entry. ValueError below two pairs or for unequal lengths."""
    import scipy.stats

    a, b = checked([a, b])
    if len(a) != len(b):
        raise ValueError(f"paired scores must be of the same seeds; got {len(a)} and {len(b)}")
    if len(a) < 2:
        raise ValueError("a paired test needs at least two seeds")
    differences = a - b
    middle, deviation = float(differences.mean()), float(differences.std(ddof=1))
    if deviation == 0:
        p = 1.0 if middle == 0 else 0.0
        flat = Estimate(middle, middle, middle, len(a))
        return Paired(flat, p, math.nan if middle == 0 else _wilcoxon(differences), math.nan)
    found = scipy.stats.ttest_1samp(differences, 0.0)
    interval = found.confidence_interval(0.95)
    difference = Estimate(middle, float(interval.low), float(interval.high), len(a))
    return Paired(difference, float(found.pvalue), _wilcoxon(differences), middle / deviation)


def _wilcoxon(differences: NDArray[np.float64]) -> float:
    import scipy.stats

    # Ties and zeros rule out the exact distribution; SciPy then takes the normal one without a word.
    return float(scipy.stats.wilcoxon(differences, zero_method="pratt").pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given; NaN stays NaN and does not count."""
    known = [(value, i) for i, value in enumerate(p) if not math.isnan(value)]
    adjusted, largest = [math.nan] * len(p), 0.0
    for rank, (value, i) in enumerate(sorted(known)):
        largest = max(largest, min(1.0, value * (len(known) - rank)))
        adjusted[i] = largest
    return adjusted


def improvement(a: Strata, b: Strata, *, count: int | None = None, seed: int = 0) -> Estimate:
    """Probability that a seed of a scores higher than one of b, averaged over tasks, with a stratified interval.

    a and b: one array (seeds,) for each task, the same tasks in the same order; the seeds need not match.
    """
    a, b = checked(a), checked(b)
    if len(a) != len(b):
        raise ValueError(f"both groups must have the same tasks; got {len(a)} and {len(b)}")
    tasks = len(a)

    def statistic(*strata: NDArray[np.float64], axis: int) -> Any:
        return np.mean([_above(x, y) for x, y in zip(strata[:tasks], strata[tasks:], strict=True)], axis=0)

    both = [*a, *b]
    value = float(statistic(*both, axis=-1))
    seeds = sum(map(len, both))
    if max(map(len, both)) < 2:
        return Estimate(value, math.nan, math.nan, seeds)
    low, high = bootstrap(both, statistic, count=count, seed=seed)
    return Estimate(value, low, high, seeds)


def _above(x: NDArray[np.float64], y: NDArray[np.float64]) -> Any:
    """P(X > Y) + ½ P(X = Y) along the last axis: from ranks, since all pairs of thousands do not fit into memory."""
    x, y = np.atleast_2d(x), np.atleast_2d(y)
    n, m = x.shape[-1], y.shape[-1]
    found = np.empty(len(x))
    for i, (one, other) in enumerate(zip(x, np.broadcast_to(y, (len(x), m)), strict=True)):
        ordered = np.sort(other)
        below = np.searchsorted(ordered, one, "left") + np.searchsorted(ordered, one, "right")
        found[i] = below.sum() / (2 * n * m)
    return found if found.size > 1 else found[0]
