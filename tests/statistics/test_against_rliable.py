"""The same numbers as rliable's, on the same scores, to the bootstrap's noise.

rliable 1.2.0 (arch 7.2.0) gave the constants: `get_interval_estimates` with 20,000 resamples (5,000 for the
probability of improvement and the profile) on A and B as drawn below, 24 runs of 3 tasks.
"""

import numpy as np
import pytest

from bayesattn_fast.statistics import Estimate, estimate, improvement, iqm, mean, median_task, profile

_draw = np.random.default_rng(7)
_runs = _draw.gamma(2.0, 1.0, (24, 3))
A, B = list(_runs.T), list((_runs * 0.9 + _draw.normal(0, 0.4, (24, 3))).T)

MEAN = (1.717525564998, 1.449748600742, 2.004235567304)
MEDIAN = (1.511040637552, 1.323915073281, 1.915455796853)
IQM = (1.495128775894, 1.232409536481, 1.804543497646)
IMPROVEMENT = (0.538194444444, 0.445023148148, 0.632523148148)
THRESHOLDS = np.linspace(0, 6, 13)
SHARE = [
    1.0,
    0.888888888889,
    0.680555555556,
    0.513888888889,
    0.305555555556,
    0.236111111111,
    0.111111111111,
    0.069444444444,
    0.055555555556,
    0.041666666667,
    0.027777777778,
    0.027777777778,
    0.013888888889,
]
LOW = [
    1.0,
    0.805555555556,
    0.569444444444,
    0.402777777778,
    0.208333333333,
    0.138888888889,
    0.041666666667,
    0.013888888889,
    0.013888888889,
    0.0,
    0.0,
    0.0,
    0.0,
]
HIGH = [
    1.0,
    0.958333333333,
    0.791666666667,
    0.625,
    0.416666666667,
    0.333333333333,
    0.180555555556,
    0.125,
    0.111111111111,
    0.097222222222,
    0.069444444444,
    0.069444444444,
    0.041666666667,
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (estimate(A, mean, count=20_000), MEAN),
        (median_task(A, count=20_000), MEDIAN),
        (estimate(A, iqm, count=20_000), IQM),
        (improvement(A, B, count=5000), IMPROVEMENT),
    ],
    ids=["mean", "median", "iqm", "improvement"],
)
def test_values_and_intervals(ours: Estimate, theirs: tuple[float, float, float]) -> None:
    value, low, high = theirs
    assert ours.value == pytest.approx(value, rel=1e-9)
    noise = 0.04 * (high - low)
    assert ours.low == pytest.approx(low, abs=noise)
    assert ours.high == pytest.approx(high, abs=noise)


def test_profile() -> None:
    ours = profile(A, THRESHOLDS, count=5000)
    np.testing.assert_allclose(ours.share, SHARE, atol=1e-9)
    np.testing.assert_allclose(ours.low, LOW, atol=0.03)
    np.testing.assert_allclose(ours.high, HIGH, atol=0.03)
