"""Estimates: values by hand, intervals against a bootstrap written out, the seeds that a width takes."""

import math

import numpy as np
import pytest
from scipy import stats

from bayesattn_fast.statistics import estimate, iqm, mean, median, seeds_needed


def test_the_interquartile_mean_cuts_a_quarter_at_each_end() -> None:
    assert iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_values_are_of_all_tasks_together() -> None:
    strata = [np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])]
    assert estimate(strata, mean).value == pytest.approx(110 / 8)
    assert estimate(strata, median).value == pytest.approx(7)
    # sorted 1 2 3 4 10 20 30 40: the middle half is 3 4 10 20
    assert estimate(strata, iqm).value == pytest.approx(37 / 4)
    assert estimate(strata, iqm).seeds == 8


def test_intervals_are_those_of_resampling_within_tasks() -> None:
    draw = np.random.default_rng(1)
    strata = [draw.normal(0, 1, 12), draw.normal(50, 3, 20)]
    found = estimate(strata, iqm, count=6000)
    again = np.random.default_rng(2)
    plain = []
    for _ in range(6000):
        together = np.sort(np.concatenate([again.choice(s, len(s)) for s in strata]))
        plain.append(together[8:24].mean())
    low, high = np.quantile(plain, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.06 * (high - low))
    assert found.high == pytest.approx(high, abs=0.06 * (high - low))


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        found = estimate([draw.normal(3, 1, 40)], mean, count=400, seed=trial)
        covered += found.low <= 3 <= found.high
    assert 0.90 <= covered / 300 <= 0.99


def test_a_single_seed_has_no_interval() -> None:
    found = estimate([np.array([2.0])])
    assert found.value == 2.0
    assert math.isnan(found.low)


def test_scores_that_are_all_equal_have_an_interval_of_no_width() -> None:
    assert estimate([np.full(5, 3.0)], iqm)[:3] == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("bad", [[], [np.array([])], [np.array([1.0, np.nan])], [np.ones((2, 2))]])
def test_what_is_not_a_score_is_refused(bad: list) -> None:
    with pytest.raises(ValueError, match="scores must"):
        estimate(bad)


def test_the_seeds_needed_are_the_fewest_that_do() -> None:
    scores = np.random.default_rng(5).normal(0, 2, 50)
    n = seeds_needed(scores, 0.5)
    widths = [2 * stats.t.ppf(0.975, k - 1) * scores.std(ddof=1) / math.sqrt(k) for k in (n - 1, n)]
    assert widths[0] > 0.5 >= widths[1]
    with pytest.raises(ValueError, match="width must be positive"):
        seeds_needed(scores, 0)
