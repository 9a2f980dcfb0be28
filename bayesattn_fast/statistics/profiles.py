"""Performance profiles: which share of all runs scores better than τ, for every τ (Agarwal et al., 2021, eq. 1).

F(τ) = mean over tasks of  #{seeds with score > τ} / seeds
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .estimates import Strata, checked, resamples


class Profile(NamedTuple):
    """The share of runs above each threshold with its pointwise 95 % band, each (thresholds,)."""

    thresholds: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def profile(
    strata: Strata,
    thresholds: NDArray[np.float64],
    *,
    lower_is_better: bool = False,
    count: int | None = None,
    seed: int = 0,
) -> Profile:
    """The profile of scores by task; with lower_is_better the share of runs below each threshold.

    The band resamples the seeds of every task. A stratum's count above τ in a resample is binomial in its share, so it
    is drawn as such: the same distribution as drawing seeds, without drawing them.
    """
    strata = checked(strata)
    thresholds = np.asarray(thresholds, dtype=np.float64)
    generator, n = np.random.default_rng(seed), count or resamples(sum(map(len, strata)))
    share = np.zeros(len(thresholds))
    drawn = np.zeros((n, len(thresholds)))
    for stratum in strata:
        ordered = np.sort(stratum)
        below = np.searchsorted(ordered, thresholds, "left") / len(ordered)
        above = 1 - np.searchsorted(ordered, thresholds, "right") / len(ordered)
        mine = below if lower_is_better else above
        share += mine / len(strata)
        drawn += generator.binomial(len(ordered), mine, size=drawn.shape) / len(ordered) / len(strata)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return Profile(thresholds, share, low, high)


def threshold_grid(strata: Strata, points: int = 101) -> NDArray[np.float64]:
    """Thresholds over the middle 99 % of the scores, with the ends a little outside."""
    scores = np.concatenate(checked(strata))
    low, high = np.quantile(scores, [0.005, 0.995])
    margin = 0.05 * (high - low) or 0.05 * max(abs(high), 1e-12)
    return np.linspace(low - margin, high + margin, points)
