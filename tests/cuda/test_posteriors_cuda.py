"""Exact posteriors by Triton on a GPU: equal to float64, the same bits every time, gradients included."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.posteriors import (
    bijection_predictive,
    hmm_filter,
    markov_predictive,
    recall_predictive,
    regression_predictive,
)
from bayesattn_fast.tunnels import Bijection
from tests.closeness import assert_as_good_as_plain

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def rows(*shape: int) -> Tensor:
    return torch.randn(shape).softmax(-1)


def compare(results: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
    """Twice on the device by Triton with the same bits; as good as the reference in float32, judged by float64."""

    def at(dtype: torch.dtype, name: str) -> Sequence[Tensor]:
        with backend(name):
            return results(*(x.to(dtype).cuda() if x.is_floating_point() else x.cuda() for x in inputs))

    found, again = at(torch.float32, "triton"), at(torch.float32, "triton")
    plain, exact = at(torch.float32, "reference"), at(torch.float64, "reference")
    for i, (f, twice, p, e) in enumerate(zip(found, again, plain, exact, strict=True)):
        assert torch.equal(f, twice)
        if (f.double() - e).abs().max() > 2e-6:
            assert_as_good_as_plain(f, p, e, f"result {i}")


@pytest.mark.parametrize(
    ("batch", "length", "states", "symbols"), [(4096, 20, 5, 5), (70_000, 3, 3, 2), (3, 500, 32, 64)]
)
def test_hmm_filter_equals_float64(batch: int, length: int, states: int, symbols: int) -> None:
    torch.manual_seed(0)
    matrices = rows(batch, states, states), rows(batch, states, symbols)
    compare(hmm_filter, (*matrices, torch.randint(-1, symbols, (batch, length))))


@pytest.mark.parametrize(("batch", "length", "states", "d"), [(4, 1999, 8, 20), (4096, 20, 8, 20), (70_000, 2, 3, 1)])
def test_gaussian_filter_equals_float64(batch: int, length: int, states: int, d: int) -> None:
    torch.manual_seed(0)
    means = torch.randn(states, d)
    inputs = means[torch.randint(0, states, (batch, length))] + torch.randn(batch, length, d)
    compare(markov_predictive, (inputs, means, rows(states, states)))


def gradients(transition: Tensor, emission: Tensor, observations: Tensor) -> tuple[Tensor, ...]:
    leaves = transition.requires_grad_(), emission.requires_grad_()
    results = hmm_filter(*leaves, observations, validate=False)
    return torch.autograd.grad(sum((r * r).sum() for r in results[:2]) + results.log_evidence.sum(), leaves)


@pytest.mark.parametrize(("batch", "length", "states", "symbols"), [(4096, 20, 5, 5), (3, 100, 32, 32)])
def test_gradients_of_the_hmm_filter_equal_float64(batch: int, length: int, states: int, symbols: int) -> None:
    torch.manual_seed(0)
    matrices = rows(batch, states, states), rows(batch, states, symbols)
    compare(gradients, (*matrices, torch.randint(-1, symbols, (batch, length))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("batch", "pairs", "symbols"), [(4096, 19, 20), (70_000, 3, 5), (5, 300, 1000)])
def test_eliminations_have_the_bits_of_the_reference(batch: int, pairs: int, symbols: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    keys, values = (torch.rand(batch, symbols).argsort(1)[:, :pairs].cuda() for _ in range(2))
    asked = torch.randint(symbols, (batch, 3)).cuda()

    def results() -> list[Tensor]:
        exact = bijection_predictive(keys, values, symbols, dtype=dtype)
        return [*exact, *recall_predictive(keys, values, asked, symbols, dtype=dtype)]

    with backend("triton"):
        found = results()
    with backend("reference"):
        plain = results()
    for f, p in zip(found, plain, strict=True):
        assert torch.equal(f, p) if f.dim() == 3 else torch.allclose(f, p, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("batch", "length", "d"), [(4096, 32, 4), (70_000, 2, 1), (3, 200, 32)])
def test_regression_equals_float64(batch: int, length: int, d: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, length, d)
    compare(regression_predictive, (x, (torch.randn(batch, 1, d) * x).sum(-1) + 0.5 * torch.randn(batch, length)))


@pytest.mark.parametrize("repeated", [False, True])
def test_the_bijection_sampler_draws_the_bits_of_the_reference(repeated: bool) -> None:
    tunnel = Bijection(separator=repeated, with_replacement=repeated)
    with backend("triton"):
        found = tunnel.sample([0, 2**62 + 1], 2**32 - 1, 2048, device="cuda")
    with backend("reference"):
        plain = tunnel.sample([0, 2**62 + 1], 2**32 - 1, 2048)
    for name in ("inputs", "targets", "predictive", "entropy"):
        assert torch.equal(getattr(found, name).cpu(), getattr(plain, name)), name
