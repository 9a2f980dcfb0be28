"""The Triton kernels of a single head, run by Triton's interpreter, against the closed forms in float64."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels.single_head import reference
from tests.closeness import assert_close
from tests.interpreter import interpreted, only_result
from tests.ops.head_cases import draw, in_float64, plain_loss, problem

FORWARD = "bayesattn_fast.kernels.single_head.forward"

# Seeds, batch, N, Dk, Dv, C; soft targets; causal.
CASES: dict[str, tuple[tuple[int, int, int, int, int, int], bool, bool]] = {
    "one position, one dimension": ((1, 1, 1, 1, 1, 2), False, True),
    "one position short of a block": ((1, 1, 31, 10, 15, 8), False, True),
    "a whole block": ((1, 1, 32, 8, 12, 5), True, True),
    "one position beyond a block": ((1, 1, 33, 24, 3, 3), False, False),
    "two seeds of two sequences": ((2, 2, 9, 5, 7, 4), True, False),
    "a launch for rows and one for columns": ((1, 1, 133, 10, 15, 8), False, True),
    "the same without a mask": ((1, 1, 130, 3, 4, 2), True, False),
    "the widest heads": ((1, 1, 20, 64, 33, 64), False, True),
}


def named(step: reference.HeadStep) -> dict[str, Tensor]:
    found = {name: value for name, value in step._asdict().items() if isinstance(value, Tensor)}
    return found | (step.statistics._asdict() if step.statistics else {})


def compare(step: reference.HeadStep, tensors: list[Tensor], causal: bool, scale: float) -> None:
    """Every field against float64, indices included."""
    exact = reference.attention_cross_entropy(*in_float64(tensors), causal, scale, step.statistics is not None)
    wanted = named(exact)
    assert named(step).keys() == wanted.keys()
    for name, value in named(step).items():
        if value.dtype == torch.int64:
            assert torch.equal(value, wanted[name]), name
        else:
            assert_close(value, wanted[name], 5e-6, name)


@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_statistics_equal_float64(name: str) -> None:
    sizes, soft, causal = CASES[name]
    tensors = draw(*sizes, soft)
    step = only_result(FORWARD, "attention_cross_entropy", *tensors, causal, sizes[3] ** -0.5, True)
    compare(step, tensors, causal, sizes[3] ** -0.5)


def test_statistics_change_no_bit_of_loss_and_gradients() -> None:
    tensors = draw(1, 1, 37, 10, 15, 8, False)
    with_them, without = (
        only_result(FORWARD, "attention_cross_entropy", *tensors, True, 0.3, statistics) for statistics in (True, False)
    )
    assert without.statistics is None
    assert all(torch.equal(a, b) for a, b in zip(with_them[:5], without[:5], strict=True))


def test_views_give_what_their_copies_give() -> None:
    q, k, v, w_out, targets = draw(2, 1, 18, 6, 6, 4, True)
    fused = torch.stack((q, k, v), 3)  # (E, B, N, 3, D)
    views = [*fused.unbind(3), w_out.mT.contiguous().mT, targets[:1].expand(2, -1, -1, -1)]
    copies = [t.contiguous() for t in views]
    first, second = (only_result(FORWARD, "attention_cross_entropy", *t, True, 0.4, False) for t in (views, copies))
    assert all(torch.equal(a, b) for a, b in zip(first[:5], second[:5], strict=True))


def test_large_scores_and_logits_neither_overflow_nor_lose_the_answer() -> None:
    q, k, v, w_out, targets = draw(1, 1, 40, 8, 5, 4, False)
    tensors = [5 * q, 5 * k, v, 100 * w_out, targets]
    step = only_result(FORWARD, "attention_cross_entropy", *tensors, True, 1.0, False)
    exact = named(reference.attention_cross_entropy(*in_float64(tensors), True, 1.0, False))
    for name, value in named(step).items():
        # Weights come back from scores of about 100, whose rounding is their error.
        assert_close(value, exact[name], 2e-4, name)


def test_short_sequences_take_one_launch_and_long_ones_two_with_the_same_bits() -> None:
    tensors = draw(2, 1, 70, 10, 15, 8, False)
    whole, made = interpreted("tests.kernels.test_single_head_triton", "step_with_whole", 4, tensors)
    assert [(launch.kernel, launch.programs) for launch in made] == [("sequence_kernel", 2)]
    parted, made = interpreted("tests.kernels.test_single_head_triton", "step_with_whole", 0, tensors)
    assert [(launch.kernel, launch.programs) for launch in made] == [("rows_kernel", 6), ("columns_kernel", 6)]
    assert all(torch.equal(value, named(parted)[name]) for name, value in named(whole).items())


def step_with_whole(most: int, tensors: list[Tensor]) -> Any:
    """In the interpreter's process: the step with another limit of what one program takes."""
    from bayesattn_fast.kernels.single_head import step

    before, step.WHOLE = step.WHOLE, most
    try:
        return step.attention_cross_entropy(*tensors, True, 0.3, True)
    finally:
        step.WHOLE = before


def test_the_weights_gradients_are_those_of_the_reference() -> None:
    x, targets, weights = problem(2, 21)
    step = only_result(FORWARD, "single_head_step", x[:, None], targets[:, None], *weights, True, 0.3)
    exact = in_float64([x[:, None], targets[:, None], *weights])
    for name, value, wanted in zip(step._fields, step, reference.single_head_step(*exact, True, 0.3), strict=True):
        assert_close(value, wanted, 5e-6, name)


def test_sizes_beyond_the_tiles_are_refused_by_name() -> None:
    tensors = draw(1, 1, 4, 65, 3, 2, False)
    with pytest.raises(ValueError, match="sizes up to 64; got Dx 1, Dk 65, Dv 3, C 2"):
        interpreted(FORWARD, "attention_cross_entropy", *tensors, True, 0.3, False)


def test_the_public_function_reaches_the_kernels_and_differentiates_through_them() -> None:
    tensors = draw(1, 2, 11, 4, 5, 3, False)
    (loss, gradients), made = interpreted("tests.kernels.test_single_head_triton", "public_step", tensors)
    assert [launch.kernel for launch in made] == ["sequence_kernel"]
    exact = [t.requires_grad_(t.is_floating_point()) for t in in_float64(tensors)]
    wanted = plain_loss(*exact, True, 0.5)
    assert_close(loss, wanted, 5e-6, "loss")
    for i, gradient in enumerate(torch.autograd.grad(3 * wanted.sum(), exact[:4])):
        assert_close(gradients[i], gradient, 5e-6, f"gradient {i}")


def public_step(tensors: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """In the interpreter's process: loss and gradients by autograd."""
    from bayesattn_fast.ops.single_head import attention_cross_entropy

    leaves = [t.requires_grad_() for t in tensors[:4]]
    with backend("triton"):
        step = attention_cross_entropy(*leaves, tensors[4], scale=0.5)
    return step.loss.detach(), list(torch.autograd.grad(3 * step.loss.sum(), leaves))


def training(seeds: int, batch: int, length: int, soft: bool) -> dict[str, Any]:
    """A call of the trainer: inputs that tell the target, a held-out copy a little off, and a seed that diverges."""
    x, targets, weights = problem(seeds * batch, length)
    x, hard = x.view(seeds, batch, length, -1), targets.view(seeds, batch, length)
    y = reference.one_hot(hard, 8, x.dtype) * 0.9 + 0.0125 if soft else hard
    rates = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.2, 0.3, 1e6]])[:seeds]
    return {
        "x": x,
        "targets": y,
        "weights": [w[:seeds] for w in weights],
        "rates": rates,
        "steps": 4,
        "every": 2,
        "limit": 8.3,
        "held_out": (x + 0.1, y),
        "causal": True,
        "scale": 0.3,
    }


@pytest.mark.parametrize(("batch", "length", "soft"), [(1, 21, False), (1, 33, True), (2, 5, False)])
def test_the_trainer_gives_the_numbers_of_step_by_step_descent_in_float64(batch: int, length: int, soft: bool) -> None:
    call = training(2, batch, length, soft)
    weights, loss, records = only_result(FORWARD, "train_single_head", **call)
    in_full = {name: in_float64(list(v)) if isinstance(v, list | tuple) else v for name, v in call.items()}
    in_full |= {name: in_float64([call[name]])[0] for name in ("x", "targets", "rates")}
    exact_weights, exact_loss, exact_records = reference.train_single_head(**in_full)
    # The second seed's readout flies off in its first step: it stops there, and the first goes on.
    assert loss.isnan().tolist() == exact_loss.isnan().tolist() == [[False] * 5, [False, False, True, True, True]]
    assert_close(loss[0], exact_loss[0], 1e-6, "loss")
    assert_close(records[0], exact_records[0], 5e-6, "records")
    assert torch.equal(records.isnan(), exact_records.isnan())
    for i, (trained, wanted) in enumerate(zip(weights, exact_weights, strict=True)):
        assert_close(trained, wanted, 5e-6, f"weights {i}")
        start = call["weights"][i].double()
        assert_close(trained[0] - start[0], wanted[0] - start[0], 5e-5, f"change of weights {i}")


def test_one_launch_takes_all_steps_between_two_records_of_all_seeds() -> None:
    call = training(2, 1, 9, False) | {"steps": 5, "every": 3, "held_out": None}
    made = interpreted(FORWARD, "train_single_head", **call)[1]
    assert [(launch.kernel, launch.programs) for launch in made] == 2 * [("sequence_kernel", 2), ("train_kernel", 2)]


def test_the_length_of_a_launch_changes_no_bit() -> None:
    call = training(1, 1, 12, False)
    found = [only_result(FORWARD, "train_single_head", **call | {"every": every}) for every in (1, 5)]
    assert torch.equal(found[0][1], found[1][1])
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


def test_training_leaves_its_arguments_alone() -> None:
    call = training(2, 1, 6, False)
    unchanged = interpreted("tests.kernels.test_single_head_triton", "weights_after_training", call)[0]
    assert all(torch.equal(a, b) for a, b in zip(unchanged, call["weights"], strict=True))


def weights_after_training(call: dict[str, Any]) -> list[Tensor]:
    """In the interpreter's process: the weights that were given, after the call."""
    from bayesattn_fast.kernels.single_head.forward import train_single_head

    train_single_head(**call)
    return list(call["weights"])


def test_the_public_trainer_reaches_the_kernel_and_marks_the_seed_that_diverged() -> None:
    call = training(2, 1, 9, False)
    found, made = interpreted("tests.kernels.test_single_head_triton", "public_training", call)
    assert {launch.kernel for launch in made} == {"sequence_kernel", "train_kernel"}
    assert found.diverged.tolist() == [False, True]
    with backend("reference"):
        plain = public_training(call, None)
    for name, ours, wanted in zip(found._fields[4:], found[4:], plain[4:], strict=True):
        assert_close(ours[0], wanted[0], 1e-5, name)


def public_training(call: dict[str, Any], name: str | None = "triton") -> Any:
    """`train_single_head` of the package, under a back end."""
    from bayesattn_fast.ops.single_head import train_single_head

    x, targets = call["x"][:, 0], call["targets"][:, 0]
    with backend(name) if name else nullcontext():
        return train_single_head(
            x, targets, *call["weights"], rates=call["rates"], steps=3, record_every=2, held_out=(x, targets)
        )
