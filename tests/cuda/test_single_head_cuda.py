"""A single head on a GPU: gradients and statistics against float64, the same bits twice, memory linear in length."""

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels.single_head.reference import HeadStep
from bayesattn_fast.ops.single_head import attention_cross_entropy, single_head_step, train_single_head
from tests.closeness import assert_close
from tests.ops.head_cases import draw, in_float64, problem

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Seeds, batch, N, Dk, Dv, C.
SIZES = [
    (1, 1, 1, 1, 1, 2),
    (3, 2, 33, 5, 7, 3),
    (2, 1, 128, 10, 15, 8),
    (1, 2, 1999, 24, 40, 12),
    (2, 1, 300, 64, 64, 64),
]


def on_gpu(tensors: list[Tensor]) -> list[Tensor]:
    return [t.cuda() for t in tensors]


def named(step: HeadStep) -> dict[str, Tensor]:
    found = {name: value for name, value in step._asdict().items() if isinstance(value, Tensor)}
    return found | (step.statistics._asdict() if step.statistics else {})


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_and_statistics_equal_float64(sizes: tuple[int, ...], causal: bool, soft: bool) -> None:
    tensors = draw(*sizes, soft)
    found = named(attention_cross_entropy(*on_gpu(tensors), causal=causal, statistics=True))
    again = named(attention_cross_entropy(*on_gpu(tensors), causal=causal, statistics=True))
    exact = named(attention_cross_entropy(*in_float64(tensors), causal=causal, statistics=True))
    for name, value in found.items():
        assert torch.equal(value, again[name]), name
        # Two keys or classes may be equal up to rounding: indices are left to the values they point at.
        if value.dtype != torch.int64:
            assert_close(value, exact[name], 5e-6, name)


def test_gradients_of_the_weights_equal_float64() -> None:
    x, targets, weights = problem(3, 500)
    step = single_head_step(x.cuda(), targets.cuda(), *on_gpu(weights))
    exact = single_head_step(*in_float64([x, targets, *weights]))
    for name, value, wanted in zip(step._fields, step, exact, strict=True):
        assert_close(value, wanted, 5e-6, name)


def test_more_than_65535_sequences_fit_one_launch() -> None:
    tensors = draw(70_000, 1, 3, 4, 4, 3, False)
    step = attention_cross_entropy(*on_gpu(tensors))
    exact = attention_cross_entropy(*in_float64(tensors))
    for name, value in named(step).items():
        assert_close(value, named(exact)[name], 5e-6, name)


def test_memory_grows_linearly_with_length() -> None:
    def peak(length: int) -> int:
        tensors = on_gpu(draw(1, 1, length, 10, 15, 8, False))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attention_cross_entropy(*tensors, statistics=True)
        return torch.cuda.max_memory_allocated() - before

    assert peak(16_384) < 5 * peak(4_096)


@pytest.mark.parametrize("length", [40, 2000])
def test_the_trainer_gives_the_numbers_of_single_steps(length: int) -> None:
    x, targets, weights = problem(3, length)
    rates = torch.tensor([[0.5] * 4, [0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 1.0, 0.1]])
    gpu = [x.cuda(), targets.cuda(), *on_gpu(weights)]
    trained = train_single_head(*gpu, rates=rates, steps=20, record_every=7, held_out=(gpu[0], gpu[1]))
    stepped = [w.double() for w in weights]
    for t in range(20):
        step = single_head_step(x.double(), targets, *stepped)
        assert_close(trained.loss[:, t], step.loss, 1e-6, "loss")
        for i in range(4):
            stepped[i] -= rates[:, i, None, None] * step[1 + i]
    for i, (ours, expected) in enumerate(zip(trained.weights, stepped, strict=True)):
        assert_close(ours, expected, 5e-6, "weights")
        start = weights[i].double()
        assert_close(ours.cpu() - start, expected - start, 1e-4, "change of the weights")
    assert_close(trained.held_out_loss, trained.loss[:, ::7], 1e-6, "held-out loss on the training data")
    assert not trained.diverged.any()


def test_training_gives_the_same_bits_however_it_is_cut_into_launches() -> None:
    x, targets, weights = problem(200, 129)
    gpu = [x.cuda(), targets.cuda(), *on_gpu(weights)]
    found = [train_single_head(*gpu, rates=[0.1, 0.1, 1.0, 0.1], steps=30, record_every=k) for k in (30, 7, 30)]
    for other in found[1:]:
        assert torch.equal(found[0].loss, other.loss)
        assert all(torch.equal(a, b) for a, b in zip(found[0].weights, other.weights, strict=True))


def test_a_seed_that_diverges_is_marked_and_leaves_the_others_alone() -> None:
    x, targets, weights = problem(2, 64)
    rates = torch.tensor([[0.1] * 4, [1e4] * 4])
    both = train_single_head(x.cuda(), targets.cuda(), *on_gpu(weights), rates=rates, steps=30)
    alone = train_single_head(
        x[:1].cuda(), targets[:1].cuda(), *(w[:1].cuda() for w in weights), rates=[0.1] * 4, steps=30
    )
    assert both.diverged.tolist() == [False, True]
    assert torch.equal(both.loss[0], alone.loss[0])
    assert bool(both.loss[1].isnan().any())
