"""The score kernel equals its reference, in one pass and in every corner; its gradients are q − p."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.ops.score import cross_entropy, score
from tests.closeness import assert_as_good_as_plain, assert_close

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def case(rows: int, classes: int, seed: int, scale: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, a predictive with exact zeros, and answers."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    weights = torch.rand(rows, classes, generator=generator, dtype=torch.float64)
    weights = torch.where(weights < 0.3, 0.0, weights)
    weights[:, 0] += 0.1
    return logits, weights / weights.sum(-1, keepdim=True), torch.randint(0, classes, (rows,), generator=generator)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 70), st.integers(1, 300), st.sampled_from([1.0, 10.0, 100.0]), st.integers(0, 2**31))
@example(33, 1, 1.0, 0)
@example(17, 256, 30.0, 1)
def test_every_score_equals_the_reference(rows: int, classes: int, scale: float, seed: int) -> None:
    logits, p, targets = case(rows, classes, seed, scale)
    for dtype, tolerance in TOLERANCE.items():
        x, given_p = logits.to(dtype), p.to(dtype)
        found = score(x, given_p, targets)
        with backend("reference"):
            exact, plain = score(x.double(), given_p.double(), targets), score(x, given_p, targets)
        for name, f, e, q in zip(found._fields, found, exact, plain, strict=True):
            assert f.dtype == dtype
            # Rounded logits leave the smallest of entropies and divergences no relative precision.
            if (f.double() - e).norm() > tolerance * max(math.sqrt(rows), float(e.norm())):
                assert_as_good_as_plain(f, q, e, f"{name} in {dtype}")
        assert_close(found.loss, exact.loss, 2 * tolerance)
        assert torch.equal(found.accuracy, plain.accuracy)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 50), st.integers(1, 80), st.integers(0, 2**31))
def test_losses_and_their_gradients_equal_the_reference(rows: int, classes: int, seed: int) -> None:
    logits, p, targets = case(rows, classes, seed)
    upstream = torch.linspace(-1, 2, rows, dtype=torch.float64)
    for dtype, tolerance in TOLERANCE.items():
        for options in ({"predictive": p.to(dtype)}, {"targets": targets}):
            x = logits.to(dtype).requires_grad_()
            losses = cross_entropy(x, **options)
            (gradient,) = torch.autograd.grad(losses, x, upstream.to(dtype))
            with backend("reference"):
                y = x.detach().double().requires_grad_()
                wide = {k: v.double() if v.is_floating_point() else v for k, v in options.items()}
                exact = cross_entropy(y, **wide)
                (exact_gradient,) = torch.autograd.grad(exact, y, upstream.to(dtype).double())
            floor = tolerance * math.sqrt(rows)
            if (losses.detach().double() - exact.detach()).norm() > floor:
                assert_close(losses, exact, tolerance)
            if (gradient.double() - exact_gradient).norm() > floor:
                assert_close(gradient, exact_gradient, tolerance)


@pytest.mark.parametrize("soft", [True, False])
def test_gradients_of_the_losses_pass_gradcheck(soft: bool) -> None:
    logits, p, targets = case(5, 7, 0)
    options = {"predictive": 1.3 * p} if soft else {"targets": targets}
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, **options), logits.requires_grad_())


def test_gradients_of_both_losses_sum_to_zero_over_the_classes() -> None:
    logits, p, targets = case(40, 20, 2)
    for options in ({"predictive": p}, {"targets": targets}):
        x = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(x, **options).sum(), x)
        assert gradient.sum(-1).abs().max() < 1e-14


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_corners_follow_the_definitions_on_every_back_end(name: str) -> None:
    inf = math.inf
    logits = torch.tensor([[0.0, -inf, 0.0], [-inf, 0.0, -inf], [-inf] * 3, [math.nan, 0.0, 0.0], [0.0, 2e4, 0.0]])
    p = torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [1.0, 0, 0], [1.0, 0, 0], [0.0, 1.0, 0.0]])
    with backend(name):
        found = score(logits, p, torch.tensor([2, 0, 0, 0, 1]))
    ln2 = math.log(2)
    assert found.loss[[0, 1, 4]].tolist() == pytest.approx([ln2, inf, 0.0])
    assert found.sampled_loss[[0, 1, 4]].tolist() == pytest.approx([ln2, inf, 0.0])
    assert found.entropy_bits[[0, 1, 4]].tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert found.kl[[0, 1, 4]].tolist() == pytest.approx([0.0, inf, 0.0], abs=1e-6)
    assert found.tvd[[0, 1, 4]].tolist() == pytest.approx([0.0, 0.5, 0.0], abs=1e-7)
    assert found.accuracy[[0, 1, 4]].tolist() == [0.5, 0.0, 1.0]
    assert found.impossible_mass[[0, 1, 4]].tolist() == [0.0, 0.0, 0.0]
    for field in found[:6]:
        assert field[2:4].isnan().all()


def test_sums_over_a_large_alphabet_keep_their_digits() -> None:
    """One long float sum of the exponentials was ten times further from float64 than torch at 32,000 classes."""
    generator = torch.Generator().manual_seed(0)
    x, p = (torch.randn(40, 32_000, generator=generator) for _ in range(2))
    p, y = p.softmax(-1), torch.zeros(40, dtype=torch.int64)
    with backend("reference"):
        plain, exact = score(x, p, y), score(x.double(), p.double(), y)
    for name, found, q, e in zip(plain._fields, score(x, p, y), plain, exact, strict=True):
        assert_as_good_as_plain(found, q, e, name)
    gradients = []
    for dtype, by in ((torch.float32, "auto"), (torch.float32, "reference"), (torch.float64, "reference")):
        logits = x.to(dtype).requires_grad_()
        with backend(by):
            gradients += torch.autograd.grad(cross_entropy(logits, predictive=p.to(dtype)).sum(), logits)
    assert_as_good_as_plain(*gradients, "gradient")


def test_a_row_has_the_same_bits_in_any_batch_and_layout() -> None:
    logits, p, targets = case(50, 9, 4)
    whole = score(logits, p, targets)
    part = score(logits.T.contiguous().T[20:23], p[20:23], targets[20:23])
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[20:23], b)


def test_what_does_not_fit_is_named() -> None:
    logits, p, targets = case(4, 3, 0)
    with pytest.raises(IndexError, match=r"targets must lie in \[0, 3\); got 3"):
        score(logits, p, targets + 3 * (torch.arange(4) == 2) - targets * (torch.arange(4) == 2))
    with pytest.raises(ValueError, match=r"predictive must have the shape and dtype of logits.*got \(4, 2\)"):
        score(logits, p[:, :2], targets)
    with pytest.raises(ValueError, match="targets must be int64 of shape"):
        cross_entropy(logits, targets=targets[:3])
    with pytest.raises(ValueError, match="either predictive or targets"):
        cross_entropy(logits)
