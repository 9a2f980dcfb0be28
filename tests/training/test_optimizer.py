"""Nothing in the optimiser mixes seeds."""

import math

import pytest
import torch
from torch.nn import Parameter

from bayesattn_fast.training import TrainingConfig
from bayesattn_fast.training import optimizer as opt


def parameters_with_gradients() -> list[Parameter]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for shape in ((4, 3, 5), (4, 7), (4,)):
        parameter = Parameter(torch.randn(shape, generator=generator))
        parameter.grad = torch.randn(shape, generator=generator)
        made.append(parameter)
    return made


def test_gradient_norm_of_a_seed_is_the_norm_of_its_own_gradients() -> None:
    parameters = parameters_with_gradients()
    expected = [math.sqrt(sum(float(p.grad[seed].double().square().sum()) for p in parameters)) for seed in range(4)]
    assert torch.allclose(opt.gradient_norms(parameters), torch.tensor(expected), rtol=1e-6)


def test_clipping_one_seed_leaves_the_others_bit_for_bit() -> None:
    parameters = parameters_with_gradients()
    before = [p.grad.clone() for p in parameters]
    opt.scale_gradients(parameters, torch.tensor([1.0, 0.25, 1.0, 1.0]))
    for parameter, old in zip(parameters, before, strict=True):
        assert torch.equal(parameter.grad[[0, 2, 3]], old[[0, 2, 3]])
        assert torch.equal(parameter.grad[1], 0.25 * old[1])


def test_a_zero_factor_clears_gradients_that_are_not_finite() -> None:
    parameters = parameters_with_gradients()
    parameters[0].grad[2] = math.nan
    opt.scale_gradients(parameters, torch.tensor([1.0, 1.0, 0.0, 1.0]))
    assert all(torch.equal(p.grad[2], torch.zeros_like(p.grad[2])) for p in parameters)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_learning_rate_rises_linearly_then_follows_its_schedule(schedule: str) -> None:
    config = TrainingConfig(steps=100, warmup=10, lr=0.5, schedule=schedule)
    rates = [opt.learning_rate(config, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * (i + 1) for i in range(10)])
    if schedule == "constant":
        assert rates[10:] == [0.5] * 90
    else:
        assert rates[10] == 0.5
        assert rates[55] == pytest.approx(0.25)
        assert rates[99] < 1e-3
