"""Comparisons: Student's and Wilcoxon's tests by hand, Holm's correction, probability of improvement by counting."""

import math

import numpy as np
import pytest

from bayesattn_fast.statistics import holm, improvement, paired


def test_a_paired_comparison_is_students() -> None:
    found = paired([1.0, 2.0, 3.0, 4.0], [1.5, 2.1, 3.8, 4.2])
    # differences −0.5 −0.1 −0.8 −0.2: mean −0.4, s = √(0.3 / 3), t = −0.4 / (s / 2), 3 degrees of freedom
    deviation = math.sqrt(0.1)
    t = 0.4 / (deviation / 2)
    # Student's distribution with 3 degrees of freedom in closed form
    angle = math.atan(t / math.sqrt(3))
    p = 1 - 2 / math.pi * (angle + math.sin(angle) * math.cos(angle))
    assert found.difference.value == pytest.approx(-0.4)
    assert found.p_t == pytest.approx(p)
    assert found.effect == pytest.approx(-0.4 / deviation)
    assert found.difference.high - found.difference.value == pytest.approx(3.182446 * deviation / 2, rel=1e-6)
    # all four differences have one sign: 2 of the 16 sign patterns are as far out
    assert found.p_wilcoxon == pytest.approx(2 / 16)


def test_equal_scores_are_no_difference() -> None:
    found = paired([1.0, 2.0], [1.0, 2.0])
    assert (found.difference.value, found.p_t) == (0.0, 1.0)


def test_holms_correction_on_his_own_terms() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    with_nan = holm([0.01, math.nan, 0.02])
    assert with_nan[0] == pytest.approx(0.02)
    assert math.isnan(with_nan[1])


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    # pairs (x, y): 1>0, 1=1 (½), 3>0, 3>1 → 3.5 of 4; second task: never → 0
    found = improvement([np.array([1.0, 3]), np.array([0.0, 0])], [np.array([0.0, 1]), np.array([1.0, 2])])
    assert found.value == pytest.approx((3.5 / 4 + 0) / 2)


def test_probability_of_improvement_has_an_interval_around_it() -> None:
    draw = np.random.default_rng(0)
    found = improvement([draw.normal(1, 1, 60)], [draw.normal(0, 1, 50)])
    assert found.low < found.value < found.high
    # Φ(1/√2) for unit normals one apart
    assert found.low < 0.7602 < found.high


def test_unequal_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="same seeds; got 2 and 3"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="same tasks; got 1 and 2"):
        improvement([np.ones(2)], [np.ones(2), np.ones(2)])
