"""Levels of predictors that learnt nothing, as published or derived for the tunnels."""

import math

import pytest
import torch
from torch import Tensor

from bayesattn_fast.evaluation import MODEL, evaluate
from bayesattn_fast.evaluation.evaluate import Evaluation
from bayesattn_fast.tunnels import PRESETS, make
from bayesattn_fast.tunnels.protocol import Tunnel


def score_uniform(tunnel: Tunnel, sequences: int) -> Evaluation:
    def uniform(inputs: Tensor) -> Tensor:
        return torch.zeros(*inputs.shape[:2], len(tunnel.positions), tunnel.classes)

    return evaluate(uniform, tunnel, [0, 1], sequences=sequences)


def test_uniform_and_constant_levels_of_the_bijection_tunnel() -> None:
    evaluation = score_uniform(make("bijection", symbols=20, pairs=19), 64)
    assert evaluation.summary("bayes_entropy_bits").mean == pytest.approx(3.2146, abs=5e-5)
    assert evaluation.summary("bayes_floor").mean == pytest.approx(2.2282, abs=5e-5)
    for metric in ("entropy_mae", "entropy_abs_error"):  # entropies depend on the position alone
        assert evaluation.summary(metric).mean == pytest.approx(1.107, abs=5e-4)
        assert evaluation.summary(metric, "uniform").mean == pytest.approx(1.107, abs=5e-4)
        assert evaluation.summary(metric, "best constant").mean == pytest.approx(0.739, abs=5e-4)
        assert evaluation.summary(metric, "best position-only").mean == pytest.approx(0.0, abs=1e-6)
    # What no entropy tells: the uniform distribution spends its mass on values already taken.
    assert evaluation.summary("impossible_mass").mean == pytest.approx(sum(k / 20 for k in range(19)) / 19)
    expected = sum(math.log2(20 / (20 - k)) for k in range(19)) / 19
    assert evaluation.summary("kl").mean == pytest.approx(expected, abs=1e-6)


def test_uniform_level_with_replacement_is_the_published_score_of_the_mlp() -> None:
    evaluation = score_uniform(make("bijection", symbols=20, pairs=19, with_replacement=True), 2000)
    assert evaluation.summary("entropy_mae").mean == pytest.approx(1.848, abs=0.02)


def test_uniform_and_constant_levels_of_the_hmm_tunnel() -> None:
    evaluation = score_uniform(PRESETS["paper"]["hmm"], 1000)
    assert evaluation.summary("entropy_mae").mean == pytest.approx(0.412, abs=0.02)
    assert evaluation.summary("entropy_abs_error", "best constant").mean == pytest.approx(0.188, abs=0.01)
    assert evaluation.summary("entropy_abs_error", "window 2").mean == pytest.approx(0.048, abs=0.004)
    kl = [evaluation.summary("kl", f"window {w}").mean for w in (1, 2, 3, 5)]
    assert kl == sorted(kl, reverse=True)


@pytest.mark.parametrize("name", sorted(PRESETS["quick"]))
def test_no_tunnel_trips_the_checks_of_its_own_truth(name: str) -> None:
    evaluation = score_uniform(PRESETS["quick"][name], 128)
    assert evaluation.warnings == ()
    assert evaluation.per_seed("kl", "exact posterior").abs().max() < 1e-12
    for metric in ("kl", "tvd", "loss", "accuracy"):
        assert evaluation.per_seed(metric, MODEL).tolist() == pytest.approx(
            evaluation.per_seed(metric, "uniform").tolist(), rel=1e-6
        )
