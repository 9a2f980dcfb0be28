"""Gradients of the HMM filter: numerically right, the same on every back end and under every transform."""

import pytest
import torch
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.posteriors import hmm_filter
from tests.closeness import assert_close

Inputs = tuple[Tensor, Tensor, Tensor]


def rows(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64).add(0.1).softmax(-1)


@pytest.fixture(params=["shared", "own"])
def case(request: pytest.FixtureRequest) -> tuple[Inputs, Tensor, Tensor]:
    """Matrices and start, observations with one missing, and ragged lengths."""
    generator = torch.Generator().manual_seed(0)
    lead = () if request.param == "shared" else (3,)
    shapes = [(*lead, 3, 3), (*lead, 3, 4), (*lead, 3)]
    observations = torch.randint(0, 4, (3, 6), generator=generator)
    observations[1, 2] = -1
    transition, emission, initial = (rows(generator, *shape) for shape in shapes)
    return (transition, emission, initial), observations, torch.tensor([6, 4, 1])


def results(inputs: Inputs, observations: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    transition, emission, initial = inputs
    return tuple(hmm_filter(transition, emission, observations, initial=initial, lengths=lengths, validate=False))


def test_gradients_of_every_result_pass_gradcheck(case: tuple[Inputs, Tensor, Tensor]) -> None:
    inputs, observations, lengths = case
    wanted = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *x: results(x, observations, lengths), wanted)


def test_second_derivatives_of_the_evidence_pass_gradgradcheck(case: tuple[Inputs, Tensor, Tensor]) -> None:
    inputs, observations, lengths = case
    wanted = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradgradcheck(lambda *x: results(x, observations, lengths)[2], wanted)


def total(inputs: Inputs, observations: Tensor, lengths: Tensor) -> Tensor:
    """A scalar that needs the gradient of every result."""
    return sum((r * torch.linspace(0.5, 2, r.numel()).view_as(r)).sum() for r in results(inputs, observations, lengths))  # type: ignore[return-value]


def test_func_grad_and_vmap_of_it_equal_the_reference(case: tuple[Inputs, Tensor, Tensor]) -> None:
    inputs, observations, lengths = case
    with backend("reference"):
        wanted = [x.clone().requires_grad_() for x in inputs]
        exact = torch.autograd.grad(total(tuple(wanted), observations, lengths), wanted)  # type: ignore[arg-type]
    found = torch.func.grad(total)(inputs, observations, lengths)
    stacked = tuple(torch.stack([x, x]) for x in inputs)
    mapped = torch.func.vmap(torch.func.grad(total), (0, None, None))(stacked, observations, lengths)
    for e, f, m in zip(exact, found, mapped, strict=True):
        assert_close(f, e, 1e-12)
        assert_close(m[0], e, 1e-12)
        assert_close(m[1], e, 1e-12)


def test_steps_of_probability_zero_leave_gradients_finite() -> None:
    transition = torch.full((2, 2), 0.5, dtype=torch.float64, requires_grad=True)
    emission = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    found = hmm_filter(transition, emission, torch.tensor([[0, 1, 0]]), allow_impossible=True)
    gradients = torch.autograd.grad(found.posterior.square().sum(), (transition, emission))
    assert all(g.isfinite().all() for g in gradients)
