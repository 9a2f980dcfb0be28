"""The native posteriors equal the references: 1e-12 in float64, 1e-6 in float32 against float64, at drawn sizes."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.posteriors import (
    bijection_predictive,
    hmm_filter,
    markov_predictive,
    recall_predictive,
    regression_predictive,
)
from bayesattn_fast.posteriors.hmm import HmmFilter
from tests.closeness import assert_close

DRAWN = settings(max_examples=25, deadline=None)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
sizes = st.integers
seeds = st.integers(0, 2**31)


def rows(generator: torch.Generator, *shape: int) -> Tensor:
    """Distributions over the last axis, some entries of which are tiny."""
    weights = torch.rand(shape, generator=generator, dtype=torch.float64) ** 3 + 1e-9
    return weights / weights.sum(-1, keepdim=True)


def by_both(posterior, *inputs: Tensor, **options) -> None:  # type: ignore[no-untyped-def]
    """Native results in both precisions against the reference in float64 on the same numbers."""
    for dtype, tolerance in TOLERANCE.items():
        given_inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        exact_inputs = [x.double() if x.is_floating_point() else x for x in given_inputs]
        native = posterior(*given_inputs, **options)
        with backend("reference"):
            exact = posterior(*exact_inputs, **options)
        for name, a, e in zip(native._fields, native, exact, strict=True):
            assert a.dtype == dtype
            # A logarithm of probabilities near 1 has no relative precision: it is as exact as 1 − p is.
            # The evidence adds one of them for every step.
            logarithms = {"entropy": 1.0, "log_evidence": 1 + 0.1 * native.entropy.shape[-1]}
            floor = tolerance * e.numel() ** 0.5 * logarithms.get(name, 0.0)
            if (a.double() - e).norm() > floor:
                assert_close(a, e, tolerance, f"{name} in {dtype}")


@DRAWN
@given(sizes(1, 32), sizes(1, 64), sizes(1, 2000), sizes(0, 10_000), st.booleans(), st.booleans(), seeds)
@example(5, 5, 20, 10_000, False, False, 0)
@example(32, 64, 17, 33, False, True, 1)
@example(1, 1, 2000, 3, True, True, 2)
@example(5, 5, 20, 0, False, True, 3)
def test_hmm_filter_equals_the_reference(
    states: int, symbols: int, length: int, batch: int, shared: bool, ragged: bool, seed: int
) -> None:
    batch = min(batch, 1 + 4_000_000 // (length * max(states, symbols) * states))
    generator = torch.Generator().manual_seed(seed)
    lead = () if shared else (batch,)
    observations = torch.randint(-1, symbols, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator) if ragged else None
    matrices = rows(generator, *lead, states, states), rows(generator, *lead, states, symbols)
    # Rounding to float32 moves a row's sum by less than what validation forgives.
    by_both(lambda *x: hmm_filter(*x[:3], initial=x[3], lengths=lengths), *matrices, observations,
            rows(generator, *lead, states))  # fmt: skip


@DRAWN
@given(sizes(1, 32), sizes(1, 24), sizes(1, 400), sizes(0, 300), st.booleans(), seeds)
def test_gaussian_filter_equals_the_reference(
    states: int, dimensions: int, length: int, batch: int, shared: bool, seed: int
) -> None:
    batch = min(batch, 1 + 2_000_000 // (length * states * max(states, dimensions)))
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(states, dimensions, generator=generator, dtype=torch.float64)
    inputs = torch.randn(batch, length, dimensions, generator=generator, dtype=torch.float64)
    transition = rows(generator, *(() if shared else (batch,)), states, states)
    by_both(lambda *x: markov_predictive(*x, noise=0.8), inputs, means, transition)


@DRAWN
@given(sizes(1, 12), sizes(1, 200), sizes(2, 80), sizes(0, 200), st.floats(0.1, 3), st.floats(0.05, 2), seeds)
@example(4, 32, 64, 257, 1.0, 0.5, 0)
def test_regression_equals_the_reference(
    dimensions: int, length: int, bins: int, batch: int, tau: float, sigma: float, seed: int
) -> None:
    batch = min(batch, 1 + 1_000_000 // (length * max(bins, dimensions**2)))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, dimensions, generator=generator, dtype=torch.float64)
    weights = tau * torch.randn(batch, 1, dimensions, generator=generator, dtype=torch.float64)
    y = (weights * x).sum(-1) + sigma * torch.randn(batch, length, generator=generator, dtype=torch.float64)
    by_both(lambda *a: regression_predictive(*a, tau=tau, sigma=sigma, bins=bins), x, y)


@pytest.mark.parametrize(("bins", "sigma"), [(64, 0.5), (3, 0.5), (40, 0.1), (700, 1.0)])
def test_every_bin_is_exact_far_into_the_tails(bins: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(50, 20, 3, generator=generator), torch.randn(50, 20, generator=generator)
    found = regression_predictive(x, y, sigma=sigma, bins=bins).predictive
    with backend("reference"):
        exact = regression_predictive(x.double(), y.double(), sigma=sigma, bins=bins).predictive
    error = (found.double() - exact).abs()
    assert (error <= 5e-7 * exact)[exact > 1e-20].all()
    assert (error <= 1e-5 * exact)[exact > 1e-36].all()
    assert (error <= 1e-37)[exact <= 1e-36].all()


def test_wide_and_narrow_bins_side_by_side_do_not_touch_each_other() -> None:
    generator = torch.Generator().manual_seed(7)
    # Where x = 0 the predictive is narrower than a bin; elsewhere it spans many.
    x = torch.randn(32, 6, 1, generator=generator) * torch.arange(32)[:, None, None].remainder(3)
    y = torch.randn(32, 6, generator=generator)
    together = regression_predictive(x, y, sigma=0.05, bins=16)
    for row in range(32):
        alone = regression_predictive(x[row : row + 1], y[row : row + 1], sigma=0.05, bins=16)
        assert all(torch.equal(a[row : row + 1], b) for a, b in zip(together, alone, strict=True))


@DRAWN
@given(sizes(1, 30), sizes(1, 60), sizes(0, 60), seeds)
def test_bijection_equals_the_reference(symbols: int, length: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randint(0, symbols, (batch, length), generator=generator) for _ in range(2))
    for dtype, tolerance in TOLERANCE.items():
        native = bijection_predictive(keys, values, symbols, dtype=dtype, allow_impossible=True)
        with backend("reference"):
            exact = bijection_predictive(keys, values, symbols, allow_impossible=True)
        for name, a, e in zip(native._fields, native, exact, strict=True):
            assert_close(a, e, tolerance, name)


@DRAWN
@given(sizes(1, 40), sizes(1, 8), sizes(0, 40), seeds)
def test_recall_equals_the_reference(values: int, queries: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    stored = values // 2 + values % 2
    keys, held = (torch.rand(batch, values, generator=generator).argsort(1)[:, :stored] for _ in range(2))
    asked = torch.randint(0, values, (batch, queries), generator=generator)
    if stored == values:
        asked = keys[:, :1].expand(batch, queries)
    for dtype, tolerance in TOLERANCE.items():
        native = recall_predictive(keys, held, asked, values, dtype=dtype)
        with backend("reference"):
            exact = recall_predictive(keys, held, asked, values)
        for name, a, e in zip(native._fields, native, exact, strict=True):
            assert_close(a, e, tolerance, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_million_observations_stay_normalised(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    transition, emission = rows(generator, 5, 5).to(dtype), rows(generator, 5, 5).to(dtype)
    observations = torch.randint(0, 5, (1, 1_000_000), generator=generator)
    result = hmm_filter(transition, emission, observations)
    rounding = torch.finfo(dtype).eps
    for field in (result.posterior, result.predictive):
        assert (field.double().sum(-1) - 1).abs().max() < 8 * rounding
        assert field.min() >= 0
    assert result.entropy.min() >= 0
    assert result.entropy.max() <= math.log2(5) + 8 * rounding
    # ln p(o_1..o_T) = Σ ln p(o_t | o_<t), the latter from the predictive of the step before.
    steps = result.predictive[0, :-1].double().gather(1, observations[0, 1:, None]).log().sum()
    first = (emission.double().mean(0)[observations[0, 0]]).log()
    assert result.log_evidence.double().item() == pytest.approx(float(steps + first), rel=8 * rounding)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_has_the_same_bits_in_any_batch_and_with_any_threads(threads: int) -> None:
    generator = torch.Generator().manual_seed(5)
    matrices = rows(generator, 37, 5, 5).float(), rows(generator, 37, 5, 7).float()
    observations = torch.randint(-1, 7, (37, 50), generator=generator)
    before = torch.get_num_threads()
    whole = hmm_filter(*matrices, observations)
    try:
        torch.set_num_threads(threads)
        part = hmm_filter(*(m[9:12] for m in matrices), observations[9:12])
    finally:
        torch.set_num_threads(before)
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[9:12], b)


def test_hmm_filter_writes_only_inside_the_results_it_was_given() -> None:
    generator = torch.Generator().manual_seed(6)
    for batch, length, states, symbols in [(1, 1, 1, 1), (17, 13, 3, 5), (5, 33, 5, 5)]:
        shapes = [(batch, length, states), (batch, length, symbols), (batch,), (batch, length)]
        guarded = [torch.full((math.prod(shape) + 64,), 7.0) for shape in shapes]
        inner = [g[32:-32].view(shape) for g, shape in zip(guarded, shapes, strict=True)]
        observations = torch.randint(0, symbols, (batch, length), generator=generator)
        matrices = rows(generator, batch, states, states).float(), rows(generator, batch, states, symbols).float()
        hmm_filter(*matrices, observations, out=HmmFilter(*inner))
        for g, shape in zip(guarded, shapes, strict=True):
            assert torch.cat([g[:32], g[-32:]]).eq(7).all(), shape
            assert not (g[32:-32] == 7).any()


def test_matrices_may_be_strided_in_any_way() -> None:
    generator = torch.Generator().manual_seed(8)
    transition, emission = rows(generator, 6, 4, 4), rows(generator, 6, 4, 3)
    observations = torch.randint(0, 3, (6, 9), generator=generator)
    plain = hmm_filter(transition, emission, observations)
    permuted = [m.permute(2, 1, 0).contiguous().permute(2, 1, 0) for m in (transition, emission)]
    turned = hmm_filter(*permuted, observations.T.contiguous().T)
    assert all(torch.equal(a, b) for a, b in zip(plain, turned, strict=True))
