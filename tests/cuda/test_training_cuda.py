"""Training on a GPU: a captured step gives what an eager one gives, between watched steps too, and with a seed lost."""

import dataclasses

import pytest
import torch

from bayesattn_fast.training import Engine, RunConfig, preset
from bayesattn_fast.training.graph import GradientGraph
from bayesattn_fast.training.settings import configure

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def config(model: str = "transformer", **settings: object) -> RunConfig:
    small = {"model": model, "d_model": 32, "layers": 2, "batch": 8, "steps": 20, "warmup": 2, **settings}
    return dataclasses.replace(configure(preset("bijection", "quick"), small), seeds=(0, 1, 2, 3))


def engines(of: RunConfig) -> tuple[Engine, Engine]:
    captured, eager = Engine(of, "cuda"), Engine(of, "cuda")
    eager.graph = False
    return captured, eager


@pytest.mark.parametrize("model", ["transformer", "mamba", "lstm", "mlp"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_is_the_eager_step(model: str, precision: str) -> None:
    captured, eager = engines(config(model, precision=precision))
    for _ in range(8):
        a, b = captured.update(), eager.update()
        torch.testing.assert_close(a.loss, b.loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a.gradient_norm, b.gradient_norm, rtol=1e-3, atol=1e-5)
    assert isinstance(captured.graph, GradientGraph)


def test_watched_steps_in_between_change_nothing() -> None:
    captured, eager = engines(config(watch_every=3))
    for _ in range(8):
        torch.testing.assert_close(captured.update().loss, eager.update().loss, rtol=1e-4, atol=1e-5)
    assert captured.watched_steps == [0, 3, 6]


def test_a_seed_that_is_lost_stays_where_it_was() -> None:
    captured, _ = engines(config())
    captured.update()
    with torch.no_grad():
        captured.parameters[0][1].fill_(float("inf"))
    before = [parameter[1].clone() for parameter in captured.parameters]
    for _ in range(3):
        captured.update()
    assert captured.diverged.tolist() == [-1, 1, -1, -1]
    for parameter, kept in zip(captured.parameters, before, strict=True):
        assert torch.equal(parameter[1].nan_to_num(), kept.nan_to_num())
