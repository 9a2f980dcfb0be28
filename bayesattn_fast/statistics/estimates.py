"""Point estimates over seeds with stratified-bootstrap intervals.

Scores come as strata: one array of seeds for each task (tunnel). Resampling draws seeds within every task, as Agarwal
et al. (2021), "Deep RL at the edge of the statistical precipice", recommend; the interquartile mean is theirs too: the
mean of the middle half of all scores. The bootstrap is SciPy's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Strata = Sequence[NDArray[np.float64]]
WORK = 4_000_000
"""Scores drawn for an interval: 2,000 resamples of 2,000 seeds, fewer of more."""


class Estimate(NamedTuple):
    """A statistic over seeds with its 95 % interval; low and high are NaN for a single seed."""

    value: float
    low: float
    high: float
    seeds: int


def mean(scores: NDArray[np.float64], axis: int = -1) -> Any:
    return np.mean(scores, axis=axis)


def median(scores: NDArray[np.float64], axis: int = -1) -> Any:
    return np.median(scores, axis=axis)


def iqm(scores: NDArray[np.float64], axis: int = -1) -> Any:
    """Interquartile mean: a quarter of the scores is cut at each end."""
    from scipy.stats import trim_mean

    return trim_mean(scores, 0.25, axis=axis)


STATISTICS: dict[str, Callable[..., Any]] = {"mean": mean, "median": median, "IQM": iqm}


def resamples(seeds: int) -> int:
    """How many times the bootstrap draws: the interval's own noise shrinks with both seeds and draws."""
    return int(min(2000, max(400, WORK // max(seeds, 1))))


def estimate(
    strata: Strata, statistic: Callable[..., Any] = mean, *, count: int | None = None, seed: int = 0
) -> Estimate:
    """The statistic of all scores together, with a percentile interval from resampling each stratum.

    strata: one array (seeds,) for each task. ValueError where nothing or something not finite is in them.
    """
    strata = checked(strata)
    together = np.concatenate(strata)
    value = float(statistic(together))
    if max(map(len, strata)) < 2:
        return Estimate(value, math.nan, math.nan, len(together))
    low, high = bootstrap(
        strata, lambda *parts, axis: statistic(np.concatenate(parts, axis=axis), axis=axis), count=count, seed=seed
    )
    return Estimate(value, low, high, len(together))


def median_task(strata: Strata, *, count: int | None = None, seed: int = 0) -> Estimate:
    """Median over tasks of each task's mean, which rliable calls the aggregate median; interval as in `estimate`."""
    strata = checked(strata)

    def statistic(*parts: NDArray[np.float64], axis: int) -> Any:
        return np.median([part.mean(axis=axis) for part in parts], axis=0)

    value, seeds = float(statistic(*strata, axis=-1)), sum(map(len, strata))
    if max(map(len, strata)) < 2:
        return Estimate(value, math.nan, math.nan, seeds)
    return Estimate(value, *bootstrap(strata, statistic, count=count, seed=seed), seeds)


def bootstrap(
    strata: Strata, statistic: Callable[..., Any], *, count: int | None = None, seed: int = 0
) -> tuple[float, float]:
    """Ends of the 95 % percentile interval of statistic(*strata, axis=…), each stratum resampled for itself."""
    import scipy.stats

    drawn = sum(map(len, strata))
    if all(np.ptp(stratum) == 0 for stratum in strata):
        value = float(statistic(*strata, axis=-1))
        return value, value
    # A stratum of one seed cannot be resampled, which SciPy refuses; twice the same seed says as much.
    whole = [np.repeat(stratum, 2) if len(stratum) == 1 else stratum for stratum in strata]
    found = scipy.stats.bootstrap(
        whole,
        statistic,
        n_resamples=count or resamples(drawn),
        method="percentile",
        vectorized=True,
        batch=max(1, 2_000_000 // drawn),
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def checked(strata: Strata) -> list[NDArray[np.float64]]:
    """Strata as arrays of float64; ValueError for none, an empty one, or a score that is not finite."""
    arrays = [np.asarray(stratum, dtype=np.float64) for stratum in strata]
    if not arrays or any(len(array) == 0 for array in arrays):
        raise ValueError("scores must hold at least one seed of every task")
    for array in arrays:
        if array.ndim != 1:
            raise ValueError(f"scores must be one number a seed; got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"scores must be finite; {int((~np.isfinite(array)).sum())} of {len(array)} are not")
    return arrays


def seeds_needed(scores: NDArray[np.float64], width: float) -> int:
    """Seeds for a 95 % t-interval of the mean no wider than `width`, at the deviation of these scores.

    The smallest n with 2 t(n − 1) s / √n ≤ width. ValueError for fewer than two scores or a width that is not positive.
    """
    from scipy.special import stdtrit

    (scores,) = checked([scores])
    if len(scores) < 2:
        raise ValueError("the deviation between seeds needs at least two of them")
    if not width > 0:
        raise ValueError(f"width must be positive; got {width}")
    deviation = float(np.std(scores, ddof=1))

    def wide(n: int) -> bool:
        return 2 * float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n) > width

    low, high = 1, 2
    while wide(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high
