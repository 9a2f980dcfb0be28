"""Metrics equal hand-computed values, and stay right where probabilities are exactly 0."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bayesattn_fast.evaluation import metrics

BIAS = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)


def logs(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_uniform_over_four_has_entropy_two_bits() -> None:
    assert float(metrics.entropy_bits(metrics.log_probabilities(torch.zeros(4)))) == pytest.approx(2.0, abs=1e-15)


def test_divergences_of_a_uniform_prediction_equal_the_values_by_hand() -> None:
    uniform = metrics.log_probabilities(torch.zeros(4))
    assert float(metrics.kl_bits(BIAS, uniform)) == pytest.approx(2.0 - 1.5)  # log₂ 4 − H(½, ¼, ¼)
    assert float(metrics.cross_entropy_nats(BIAS, uniform)) == pytest.approx(math.log(4))
    assert float(metrics.tvd(BIAS, uniform)) == pytest.approx(0.25)
    assert float(metrics.impossible_mass(BIAS, uniform)) == pytest.approx(0.25)


def test_a_prediction_that_rules_out_a_possible_answer_costs_infinitely_much() -> None:
    certain = logs(1.0, 0.0, 0.0, 0.0)
    assert float(metrics.kl_bits(BIAS, certain)) == math.inf
    assert float(metrics.cross_entropy_nats(BIAS, certain)) == math.inf
    assert float(metrics.entropy_bits(certain)) == 0.0
    assert float(metrics.tvd(BIAS, certain)) == pytest.approx(0.5)
    assert float(metrics.impossible_mass(BIAS, certain)) == 0.0


def test_logits_of_minus_infinity_on_impossible_answers_are_exact() -> None:
    exact = metrics.log_probabilities(torch.tensor([math.log(2), 0.0, 0.0, -math.inf]))
    for value in (metrics.kl_bits(BIAS, exact), metrics.tvd(BIAS, exact), metrics.impossible_mass(BIAS, exact)):
        assert float(value) == pytest.approx(0.0, abs=1e-7)
    assert float(metrics.entropy_bits(exact)) == pytest.approx(1.5)


def test_answers_that_tie_share_the_credit() -> None:
    log_q = torch.stack([logs(0.4, 0.4, 0.2, 0.0), logs(0.4, 0.4, 0.2, 0.0), logs(0.1, 0.6, 0.2, 0.1)])
    assert metrics.accuracy(log_q, torch.tensor([0, 2, 1])).tolist() == [0.5, 0.0, 1.0]


def test_predictions_that_are_not_finite_give_nan_and_never_a_score() -> None:
    broken = metrics.log_probabilities(torch.tensor([[math.nan, 0.0, 0.0, 0.0], [-math.inf] * 4]))
    predictive, targets = BIAS.expand(2, 4), torch.zeros(2, dtype=torch.int64)
    truth = metrics.truth_scores(predictive, targets)
    scores = metrics.pointwise(broken, predictive, targets, truth)
    for name in scores.keys() - truth.keys():
        assert scores[name].isnan().all(), name


def test_float32_truth_does_not_put_a_loss_below_its_floor() -> None:
    raw = torch.full((13,), 1 / 13)  # sums to 1 + 1e-7 in float32
    predictive, log_q = metrics.normalised(raw), metrics.log_of(raw)
    truth = metrics.truth_scores(predictive, torch.tensor(0))
    assert float(metrics.cross_entropy_nats(predictive, log_q) - truth["bayes_floor"]) == pytest.approx(0.0, abs=1e-15)


distributions = st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(lambda p: sum(p) > 1e-3)


@given(distributions, st.lists(st.floats(-20, 20), min_size=5, max_size=5))
def test_gap_in_nats_is_the_divergence_in_bits_and_bounds_the_variation_distance(
    weights: list[float], logits: list[float]
) -> None:
    predictive = metrics.normalised(torch.tensor(weights, dtype=torch.float64))
    log_q = metrics.log_probabilities(torch.tensor(logits, dtype=torch.float64))
    targets = predictive.argmax()
    scores = metrics.pointwise(log_q, predictive, targets, metrics.truth_scores(predictive, targets))
    kl_nats = float(scores["kl"]) * math.log(2)
    assert float(scores["gap"]) == pytest.approx(kl_nats, abs=1e-10)
    assert kl_nats >= -1e-12
    assert float(scores["tvd"]) <= math.sqrt(max(kl_nats, 0.0) / 2) + 1e-7  # Pinsker
    assert float(scores["impossible_mass"]) <= float(scores["tvd"]) + 1e-12
