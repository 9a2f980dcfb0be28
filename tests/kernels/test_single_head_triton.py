"""The Triton kernels of a single head, run by Triton's interpreter, against the closed forms in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

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
    from bayesattn_fast.kernels.single_head import forward

    before, forward.WHOLE = forward.WHOLE, most
    try:
        return forward.attention_cross_entropy(*tensors, True, 0.3, True)
    finally:
        forward.WHOLE = before


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
    from bayesattn_fast.backends import backend
    from bayesattn_fast.ops.single_head import attention_cross_entropy

    leaves = [t.requires_grad_() for t in tensors[:4]]
    with backend("triton"):
        step = attention_cross_entropy(*leaves, tensors[4], scale=0.5)
    return step.loss.detach(), list(torch.autograd.grad(3 * step.loss.sum(), leaves))
