"""Steps to a threshold. A run that never gets there is censored at its last step: it took longer, but how long?

The median is of the Kaplan–Meier curve with SciPy's log-log interval; infinite where under half of the runs arrive.
"""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Steps(NamedTuple):
    """Steps until a threshold was met."""

    median: float
    low: float
    high: float
    """95 % interval of the median; infinite where the data do not bound it."""
    reached: int
    runs: int


def first_reach(
    curve: Sequence[float], steps: Sequence[int], threshold: float, *, lower_is_better: bool = True
) -> float:
    """The first of `steps` at which the curve is at the threshold or better; infinite where it never is."""
    values = np.asarray(curve, dtype=np.float64)
    met = values <= threshold if lower_is_better else values >= threshold
    return float(steps[int(met.argmax())]) if met.any() else math.inf


def steps_to_threshold(reached: Sequence[float], last: Sequence[float]) -> Steps:
    """Median over runs. reached: a step or ∞ for each run; last: the step at which the run ended.

    ValueError where nothing is given or the lengths differ.
    """
    from scipy.stats import CensoredData, ecdf

    found, ends = np.asarray(reached, dtype=np.float64), np.asarray(last, dtype=np.float64)
    if len(found) == 0 or len(found) != len(ends):
        raise ValueError(f"reached and last must be of the same runs, at least one; got {len(found)} and {len(ends)}")
    met = np.isfinite(found)
    if not met.any():
        return Steps(math.inf, math.inf, math.inf, 0, len(found))
    survival = ecdf(CensoredData(uncensored=found[met], right=ends[~met])).sf
    with warnings.catch_warnings():
        # At survival 0 or 1 the log-log interval is not defined; what stands there instead is decided below.
        warnings.simplefilter("ignore", RuntimeWarning)
        band = survival.confidence_interval(method="log-log")
    curves = (survival.probabilities, band.low.probabilities, band.high.probabilities)
    median, low, high = (_first_at_half(survival.quantiles, curve, survival.probabilities) for curve in curves)
    return Steps(median, low, high, int(met.sum()), len(found))


def _first_at_half(steps: NDArray[np.float64], surviving: NDArray[np.float64], known: NDArray[np.float64]) -> float:
    # Where all or none survive there is no interval: the curve itself stands for its bounds.
    at = np.flatnonzero(np.where(np.isnan(surviving), known, surviving) <= 0.5)
    return float(steps[at[0]]) if len(at) else math.inf
