"""Performance profiles and steps to a threshold, on runs whose answers are known."""

import math

import numpy as np
import pytest

from bayesattn_fast.statistics import first_reach, profile, steps_to_threshold


def test_a_profile_is_the_share_of_runs_beyond_each_threshold() -> None:
    strata = [np.array([1.0, 2, 3, 4]), np.array([3.0, 3])]
    assert profile(strata, np.array([0.0, 2.0, 3.5])).share == pytest.approx([1.0, (0.5 + 1) / 2, (0.25 + 0) / 2])
    lower = profile(strata, np.array([0.0, 2.0, 3.5]), lower_is_better=True)
    assert lower.share == pytest.approx([0.0, (0.25 + 0) / 2, (0.75 + 1) / 2])


def test_the_band_of_a_profile_is_that_of_resampled_seeds() -> None:
    draw = np.random.default_rng(0)
    scores = draw.normal(size=50)
    found = profile([scores], np.array([0.0]), count=8000)
    plain = [(draw.choice(scores, 50) > 0).mean() for _ in range(8000)]
    assert (found.low[0], found.high[0]) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.025)


def test_the_first_step_at_the_threshold_or_better() -> None:
    assert first_reach([3.0, 2.0, 1.0, 2.0], [0, 10, 20, 30], 2.0) == 10
    assert first_reach([0.1, 0.9], [5, 6], 0.5, lower_is_better=False) == 6
    assert first_reach([3.0, 2.5], [0, 10], 2.0) == math.inf


def test_without_censoring_the_median_is_the_middle_run() -> None:
    found = steps_to_threshold([10, 20, 30], [100] * 3)
    assert (found.median, found.reached, found.runs) == (20, 3, 3)


def test_runs_that_never_arrive_push_the_median_back() -> None:
    found = steps_to_threshold([10, 20, 30, math.inf, math.inf], [100] * 5)
    # survival after 10, 20, 30: 4/5, 3/5, 2/5: the third step takes it under a half
    assert (found.median, found.reached, found.runs) == (30, 3, 5)
    # Kaplan–Meier with an early end: after 10 (4/5), censored at 15, after 20 4/5·2/3 = 8/15, after 30 4/15
    early = steps_to_threshold([10, math.inf, 20, 30, math.inf], [100, 15, 100, 100, 100])
    assert early.median == 30


def test_with_under_half_arriving_the_median_is_not_known() -> None:
    found = steps_to_threshold([10, math.inf, math.inf], [100] * 3)
    assert math.isinf(found.median)
    assert steps_to_threshold([math.inf] * 2, [5, 5])[:4] == (math.inf, math.inf, math.inf, 0)


def test_the_interval_narrows_with_runs() -> None:
    draw = np.random.default_rng(0)
    few, many = (steps_to_threshold(draw.integers(1, 1000, n).astype(float), [1000] * n) for n in (20, 2000))
    assert few.low < 500 < few.high
    assert many.high - many.low < (few.high - few.low) / 3
