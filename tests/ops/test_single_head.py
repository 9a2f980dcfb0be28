"""The fused step of one attention head against float64 autograd, and the trainer against plain training."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels.single_head.reference import Statistics
from bayesattn_fast.ops.single_head import (
    attention_cross_entropy,
    attention_maps,
    single_head_step,
    train_single_head,
)
from tests.closeness import assert_close
from tests.ops.head_cases import draw, in_float64, plain_loss, problem


def assert_equals_autograd(tensors: list[Tensor], causal: bool, scale: float, tolerance: float) -> None:
    exact = [t.requires_grad_(t.is_floating_point()) for t in in_float64(tensors)]
    loss = plain_loss(*exact, causal, scale)
    gradients = torch.autograd.grad(loss.sum(), exact[:4])
    step = attention_cross_entropy(*tensors, causal=causal, scale=scale)
    assert_close(step.loss, loss, tolerance, "loss")
    for name, ours, wanted in zip(("dq", "dk", "dv", "dw_out"), step[1:5], gradients, strict=True):
        # A head of one position routes nowhere: its exact gradients are zero, ours must be too.
        assert_close(ours, wanted, tolerance, name)


sizes = {
    "seeds": st.integers(1, 5),
    "batch": st.integers(1, 3),
    "length": st.integers(1, 300),
    "head": st.integers(1, 40),
    "values": st.integers(1, 40),
    "classes": st.integers(2, 64),
    "soft": st.booleans(),
    "causal": st.booleans(),
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**sizes)
def test_float32_gradients_equal_float64_autograd_for_any_shape(causal: bool, **shape: int) -> None:
    assert_equals_autograd(draw(**shape), causal, shape["head"] ** -0.5, 5e-6)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 511, 512, 1999])
@pytest.mark.parametrize("causal", [True, False])
def test_lengths_at_the_edges_of_blocks_equal_float64_autograd(length: int, causal: bool) -> None:
    assert_equals_autograd(draw(1, 1, length, 10, 15, 8, False), causal, 10**-0.5, 5e-6)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(**{**sizes, "length": st.integers(1, 40)})
def test_the_closed_forms_are_the_gradients_in_float64(causal: bool, **shape: int) -> None:
    assert_equals_autograd(in_float64(draw(**shape)), causal, 0.7, 1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(**sizes)
def test_statistics_equal_their_definitions_in_float64(causal: bool, **shape: int) -> None:
    tensors = draw(**shape)
    found = attention_cross_entropy(*tensors, causal=causal, statistics=True).statistics
    exact = attention_cross_entropy(*in_float64(tensors), causal=causal, statistics=True).statistics
    assert found is not None
    assert exact is not None
    for name, ours, wanted in zip(Statistics._fields, found, exact, strict=True):
        if name not in ("argmax", "predicted"):
            assert_close(ours, wanted, 5e-6, name)
    # The largest weight may be shared by two keys up to rounding: compare what the index points at.
    q, k = tensors[0].double(), tensors[1].double()
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    at_ours, at_exact = (scores.gather(-1, s.argmax[..., None]) for s in (found, exact))
    assert float((at_exact - at_ours).abs().max()) < 1e-5


def test_statistics_are_sums_of_the_dense_maps() -> None:
    tensors = in_float64(draw(2, 2, 23, 5, 7, 4, False))
    found = attention_cross_entropy(*tensors, statistics=True).statistics
    maps = attention_maps(*tensors)
    assert found is not None
    gradient = -maps.responsibility * maps.advantage
    assert_close(found.mass, maps.responsibility.sum(-2), 1e-12, "mass")
    assert_close(found.signed, gradient.sum(-2), 1e-12, "signed")
    assert_close(found.absolute, gradient.abs().sum(-2), 1e-12, "absolute")
    assert_close(found.variance, (maps.responsibility * maps.advantage.square()).sum(-1), 1e-12, "variance")
    assert_close(found.expected, (maps.responsibility * maps.compatibility).sum(-1), 1e-12, "expected")
    assert float(gradient.sum(-1).abs().max()) < 1e-15


def test_the_loss_is_differentiable_and_scales_its_gradients() -> None:
    tensors = draw(3, 2, 40, 4, 6, 5, False)
    leaves = [t.requires_grad_() for t in tensors[:4]]
    step = attention_cross_entropy(*leaves, tensors[4])
    weights = torch.tensor([1.0, -2.0, 0.5])
    for ours, analytic in zip(torch.autograd.grad(step.loss @ weights, leaves), step[1:5], strict=True):
        assert_close(ours, analytic * weights.view(-1, *[1] * (analytic.dim() - 1)), 1e-6)


def test_large_scores_neither_overflow_nor_lose_the_answer() -> None:
    q, k, v, w_out, targets = draw(1, 1, 100, 8, 5, 4, False)
    assert_equals_autograd([30 * q, 30 * k, v, w_out, targets], True, 1.0, 2e-4)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    tensors, before = draw(1, 1, 700, 10, 15, 8, False), torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        step = attention_cross_entropy(*tensors, statistics=True)
        results.append([*step[:5], *(step.statistics or ())])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_sequence_gives_the_same_bits_alone_and_among_others() -> None:
    q, k, v, w_out, targets = draw(3, 2, 90, 6, 9, 4, False)
    together = attention_cross_entropy(q, k, v, w_out, targets)
    alone = attention_cross_entropy(q[1], k[1], v[1], w_out[1], targets[1])
    assert torch.equal(together.dq[1], alone.dq)
    assert torch.equal(together.dw_out[1], alone.dw_out)
    assert torch.equal(together.loss[1], alone.loss)


def test_a_hundred_steps_follow_the_authors_protocol_in_plain_torch() -> None:
    """One loss, autograd, and two groups of rates: 0.01 for routing and readout, 0.1 for values."""
    x, targets, weights = problem(1, 2000)
    ours = train_single_head(x, targets, *weights, rates=[0.01, 0.01, 0.1, 0.01], steps=100)
    plain = [w[0].clone().requires_grad_() for w in weights]
    mask = torch.ones(2000, 2000, dtype=torch.bool).triu(1)
    losses = []
    for step in range(101):
        q, k, v = (x[0] @ w for w in plain[:3])
        scores = (q @ k.T / math.sqrt(10)).masked_fill(mask, -torch.inf)
        loss = F.cross_entropy(torch.softmax(scores, -1) @ v @ plain[3], targets[0])
        losses.append(loss.detach())
        if step < 100:
            gradients = torch.autograd.grad(loss, plain)
            with torch.no_grad():
                for w, gradient, rate in zip(plain, gradients, (0.01, 0.01, 0.1, 0.01), strict=True):
                    w -= rate * gradient
    for trained, start, expected in zip(ours.weights, weights, plain, strict=True):
        assert_close(trained[0], expected, 1e-4, "weights")
        assert_close(trained[0] - start[0], expected - start[0], 1e-3, "change of the weights")
    assert_close(ours.loss[0], torch.stack(losses), 1e-6, "loss")


@pytest.mark.parametrize("length", [50, 700])
def test_the_trainer_gives_the_numbers_of_single_steps(length: int) -> None:
    x, targets, weights = problem(3, length)
    rates = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0]])
    trained = train_single_head(x, targets, *weights, rates=rates, steps=20, record_every=5, held_out=(x, targets))
    stepped = [w.clone() for w in weights]
    for t in range(20):
        step = single_head_step(x, targets, *stepped)
        assert_close(trained.loss[:, t], step.loss, 1e-6, "loss")
        for i in range(4):
            stepped[i] -= rates[:, i, None, None] * step[1 + i]
    for ours, expected in zip(trained.weights, stepped, strict=True):
        assert_close(ours, expected, 1e-6, "weights")
    q, k, v = (x @ w for w in trained.weights[:3])
    found = attention_cross_entropy(q, k, v, trained.weights[3], targets, statistics=True).statistics
    assert found is not None
    assert_close(trained.entropy[:, -1], found.predictive_entropy.mean(1), 1e-5, "entropy")
    assert_close(trained.routing_entropy[:, -1], found.entropy.mean(1), 1e-5, "routing entropy")
    assert_close(trained.accuracy[:, -1], (found.predicted == targets).double().mean(1), 1e-6, "accuracy")
    assert_close(trained.advantage_variance[:, -1], found.variance.sum(1) * length, 1e-4, "advantage variance")
    assert_close(trained.held_out_loss, trained.loss[:, ::5], 1e-9, "held-out loss on the training data")


def test_the_native_trainer_equals_the_reference_trainer() -> None:
    x, targets, weights = problem(2, 60)
    options = {"rates": [0.2, 0.1, 1.0, 0.3], "steps": 12, "record_every": 4, "held_out": (x + 0.1, targets)}
    native = train_single_head(x, targets, *weights, **options)
    with backend("reference"):
        plain = train_single_head(x, targets, *weights, **options)
    for name, ours, expected in zip(native._fields[4:], native[4:], plain[4:], strict=True):
        assert_close(ours, expected, 1e-4, name)
    assert_close(native.loss, plain.loss, 1e-6, "loss")


def test_a_seed_that_diverges_is_marked_and_leaves_the_others_alone() -> None:
    x, targets, weights = problem(2, 64)
    rates = torch.tensor([[0.1] * 4, [1e4] * 4])
    both = train_single_head(x, targets, *weights, rates=rates, steps=30)
    alone = train_single_head(x[:1], targets[:1], *(w[:1] for w in weights), rates=[0.1] * 4, steps=30)
    assert both.diverged.tolist() == [False, True]
    assert torch.equal(both.loss[0], alone.loss[0])
    assert bool(both.loss[1].isnan().any())


def test_refusals_name_the_argument() -> None:
    q, k, v, w_out, targets = (t[0, 0] if i != 3 else t[0] for i, t in enumerate(draw(1, 1, 5, 3, 4, 6, False)))
    with pytest.raises(ValueError, match=r"targets must lie in \[0, 6\)"):
        attention_cross_entropy(q, k, v, w_out, targets + 6)
    with pytest.raises(ValueError, match="k must be"):
        attention_cross_entropy(q, k[:, :2], v, w_out, targets)
    with pytest.raises(ValueError, match="v must be"):
        attention_cross_entropy(q, k, v[:3], w_out, targets)
    with pytest.raises(ValueError, match="w_out must be"):
        attention_cross_entropy(q, k, v, w_out[:2], targets)
    with pytest.raises(TypeError, match="q must be float32 or float64"):
        attention_cross_entropy(q.half(), k, v, w_out, targets)
    x, y, weights = problem(2, 5)
    with pytest.raises(ValueError, match="rates must be"):
        train_single_head(x, y, *weights, rates=[0.1], steps=3)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        train_single_head(x, y, *weights, rates=[0.1] * 4, steps=0)
    with pytest.raises(ValueError, match="w_q must have a seed axis"):
        train_single_head(x[0], y[0], *(w[0] for w in weights), rates=[0.1] * 4, steps=3)
