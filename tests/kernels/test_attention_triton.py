"""The Triton attention kernels, run by Triton's interpreter, against the dense formulas in float64."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels._triton.launch import Resources
from bayesattn_fast.kernels.attention.tiles import BackwardSchedule, Schedule
from tests.closeness import assert_close, relative_error
from tests.interpreter import interpreted, only_result
from tests.kernels.attention_calls import CASES, TOLERANCE, Case, both_passes, compare, dense, draw

FORWARD = "bayesattn_fast.kernels.attention.forward"
BACKWARD = "bayesattn_fast.kernels.attention.backward"

SCHEDULES = {
    "table": (None, None),
    "whole, 16 queries": (16, None),
    "tiled, 16 by 16": (16, 16),
    "tiled, 32 queries by 16 keys": (32, 16),
    "tiled, 16 queries by 32 keys": (16, 32),
}


def schedules(name: str, case: Case) -> dict[str, object]:
    """Forced tiles for both passes, or none: the table's choice."""
    block_m, block_n = SCHEDULES[name]
    if block_m is None:
        return {"forward": None, "backward": None}
    everything = max(16, 1 << (case.n_k - 1).bit_length())
    tile = Schedule(block_n is None, block_m, block_n or everything, Resources(4, 1))
    return {"forward": tile, "backward": BackwardSchedule(None if tile.whole else tile, tile)}


def run(
    operands: dict[str, Tensor | None], case: Case, scale: float, name: str = "table", statistics: bool = True
) -> dict[str, Tensor]:
    """Both passes in the interpreter, all results by name."""
    tiles = schedules(name, case)
    forward = partial(only_result, FORWARD, "forward", schedule=tiles["forward"])
    backward = partial(only_result, BACKWARD, "backward", schedule=tiles["backward"])
    return both_passes(forward, backward, operands, case, scale, statistics)


def check(operands: dict[str, Tensor | None], case: Case, name: str = "table") -> None:
    scale = 1 / math.sqrt(case.d)
    compare(run(operands, case, scale, name), dense(operands, case, scale), TOLERANCE[case.dtype])


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "tiled, 16 by 16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_and_statistics_equal_the_dense_formulas(case: Case, schedule: str) -> None:
    check(draw(case), case, schedule)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("schedule", ["whole, 16 queries", "tiled, 16 by 16"])
def test_half_precision_results_stay_within_their_tolerance(schedule: str, dtype: torch.dtype) -> None:
    case = Case((1, 2, 1), 35, 20, 24, 12, True, dlse=True, dtype=dtype)
    check(draw(case), case, schedule)


@pytest.mark.parametrize("schedule", ["whole, 16 queries", "tiled, 16 by 16"])
def test_strided_and_expanded_views_give_what_their_copies_give(schedule: str) -> None:
    case = Case((2, 3, 3), 18, 18, 8, 8, True, dlse=True)
    fused = torch.randn(2, 18, 3, 3, 8, generator=torch.Generator().manual_seed(1))
    views: dict[str, Tensor | None] = {
        "q": fused[:, :, 0].transpose(1, 2),
        "k": fused[:1, :, 1, :1].transpose(1, 2).expand(2, 3, -1, -1),
        "v": fused.transpose(1, 4)[:, :, 2, :, :].permute(0, 2, 3, 1),
        "u": torch.tensor(0.5).expand(2, 3, 18, 8),
        "dlse": torch.tensor(0.25).expand(2, 3, 18),
    }
    assert not any(view.is_contiguous() for view in views.values())
    actual = run(views, case, 0.3, schedule)
    copies = run({name: view.contiguous() for name, view in views.items()}, case, 0.3, schedule)
    for name, result in actual.items():
        assert torch.equal(result, copies[name]), name
    assert_close(actual["dk"], dense(views, case, 0.3)["dk"], 2e-6)


@pytest.mark.parametrize("schedule", ["whole, 16 queries", "tiled, 16 by 16"])
def test_statistics_do_not_change_a_bit_of_the_gradients(schedule: str) -> None:
    case = CASES["causal, more keys than queries, lengths"]._replace(heads=(2, 2, 2))
    operands = draw(case)
    with_them, without = run(operands, case, 0.3, schedule), run(operands, case, 0.3, schedule, statistics=False)
    for name in ("o", "lse", "dq", "dk", "dv"):
        assert torch.equal(with_them[name], without[name]), name


@pytest.mark.parametrize("schedule", ["whole, 16 queries", "tiled, 16 by 16"])
def test_logits_of_ten_thousand_cost_no_accuracy(schedule: str) -> None:
    # Multiples of 1/16: every product is exact, and only the softmax can lose digits.
    case = Case((1, 2, 2), 33, 33, 4, 8, True)
    operands = draw(case)
    operands["q"] = (operands["q"] * 16).round() / 16
    operands["k"] = (operands["k"] * 16).round() / 16
    scale = 4096.0
    actual, exact = run(operands, case, scale, schedule), dense(operands, case, scale)
    assert exact["lse"].abs().max() > 1e4
    for quantity in ("o", "lse", "dv", "responsibility", "value_norm", "expected"):
        assert_close(actual[quantity], exact[quantity], 2e-6, quantity)


@pytest.mark.parametrize("scale", [1.0, 64.0, 4096.0])
def test_entropy_of_nearly_one_hot_rows_keeps_its_digits(scale: float) -> None:
    case = Case((1, 1, 1), 24, 24, 4, 4, False)
    operands = draw(case)
    operands["q"] = (operands["q"] * 16).round() / 16
    operands["k"] = (operands["k"] * 16).round() / 16
    actual = run(operands, case, scale, "tiled, 16 by 16")["entropy"]
    exact = dense(operands, case, scale)["entropy"]
    assert actual.min() >= 0
    assert ((actual - exact).abs() <= 1e-4 * exact + 1e-37).all()
    assert scale == 1 or ((exact > 0) & (exact < 1e-20)).any()


@pytest.mark.parametrize("schedule", ["whole, 16 queries", "tiled, 16 by 16"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_dead_keys_and_dead_rows_hold_reaches_nothing(poison: float, schedule: str) -> None:
    for causal in (False, True):
        case = Case((2, 2, 1), 20, 20, 8, 8, causal, (13, 20), (20, 9), True)
        clean = draw(case)
        spoilt = {name: tensor.clone() for name, tensor in clean.items()}
        spoilt["k"][0, :, 13:] = poison
        spoilt["v"][0, :, 13:] = poison
        for name in ("q", "u", "dlse"):
            spoilt[name][1, :, 9:] = poison
        actual, expected = run(spoilt, case, 0.3, schedule), run(clean, case, 0.3, schedule)
        for name, result in actual.items():
            assert torch.equal(result, expected[name]), f"{name}, causal {causal}"


@pytest.mark.parametrize("schedule", ["whole, 16 queries", "tiled, 16 by 16", "tiled, 32 queries by 16 keys"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("operand", ["k", "v"])
def test_a_spoilt_key_reaches_the_rows_that_see_it_and_no_other(operand: str, poison: float, schedule: str) -> None:
    case = Case((1, 1, 1), 24, 24, 8, 8, True)
    clean = draw(case)
    spoilt = dict(clean)
    spoilt[operand] = clean[operand].clone()
    spoilt[operand][:, :, 11, 3] = poison
    actual, expected = run(spoilt, case, 0.3, schedule), run(clean, case, 0.3, schedule)
    for name in ("o", "lse", "entropy", "dq", "expected", "variance", "score_norm2"):
        assert torch.equal(actual[name][:, :, :11], expected[name][:, :, :11]), name
    if operand == "v":
        assert not actual["o"][:, :, 11:, 3].isfinite().any()


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 0, 5, 5), (1, 2, 0, 5), (1, 2, 5, 0), (1, 2, 200, 0)])
def test_empty_batches_queries_and_keys_give_zeros(shape: tuple[int, int, int, int], statistics: bool) -> None:
    b, h, n_q, n_k = shape
    case = Case((b, h, h), n_q, n_k, 8, 8, False)
    results = run(draw(case), case, 0.3, statistics=statistics)
    assert (results["lse"] == -math.inf).all()
    for name in set(results) - {"lse", "argmax"}:
        assert results[name] is None or (results[name] == 0).all(), name
    assert results["argmax"] is None or (results["argmax"] == -1).all()


@pytest.mark.parametrize(
    ("n", "d", "kernels"),
    [
        (20, 8, ["forward_kernel", "backward_columns_kernel"]),
        (20, 65, ["forward_kernel", "backward_rows_kernel", "backward_columns_kernel"]),
        (130, 8, ["forward_kernel", "backward_rows_kernel", "backward_columns_kernel"]),
    ],
)
def test_short_heads_take_one_launch_a_pass_and_others_two_in_the_backward(n: int, d: int, kernels: list[str]) -> None:
    q = torch.zeros(1, 1, n, d)
    common = {"causal": True, "scale": 1.0, "lengths": None, "query_lengths": None, "statistics": False}
    result, launches = interpreted(FORWARD, "forward", q, q, q, **common)
    _, more = interpreted(BACKWARD, "backward", q, q, q, result.o, result.lse, q, **common)
    assert [made.kernel for made in launches + more] == kernels


def test_rows_of_the_score_gradient_sum_to_zero_and_columns_add_up_to_the_live_rows() -> None:
    case = CASES["causal, more keys than queries, lengths"]
    results = run(draw(case), case, 0.5)
    live_rows = torch.tensor([19.0, 11.0])[:, None]
    assert_close(results["responsibility"].sum(-1), live_rows.expand(2, 2), 2e-6)
    assert relative_error(results["routing"].sum(-1), torch.zeros(2, 2)) < 1e-5 * results["absolute_routing"].sum()


def test_a_dtype_the_kernels_do_not_take_is_refused_by_name() -> None:
    q = torch.zeros(1, 1, 4, 8, dtype=torch.float64)
    with pytest.raises(TypeError, match="float32, float16, bfloat16; q is float64"):
        only_result(
            FORWARD, "forward", q, q, q, causal=True, scale=1.0, lengths=None, query_lengths=None, statistics=False
        )
