"""The Triton attention kernels, run by Triton's interpreter, against the dense formulas in float64."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels._triton.launch import Resources
from bayesattn_fast.kernels.attention.tiles import BackwardSchedule, Schedule
from tests.closeness import assert_close, relative_error
from tests.interpreter import interpreted, only_result

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
FORWARD = "bayesattn_fast.kernels.attention.forward"
BACKWARD = "bayesattn_fast.kernels.attention.backward"
NAMES = (
    "o lse entropy max_weight dq dk dv expected variance score_norm2 responsibility routing absolute_routing value_norm"
)


class Case(NamedTuple):
    """A call: q (B, H, n_q, d), k (B, H_kv, n_k, d), v (B, H_kv, n_k, d_v), masks, and what the gradients come from."""

    heads: tuple[int, int, int]
    n_q: int
    n_k: int
    d: int
    d_v: int
    causal: bool
    lengths: tuple[int, ...] | None = None
    query_lengths: tuple[int, ...] | None = None
    dlse: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "one of everything": Case((1, 1, 1), 1, 1, 1, 1, True),
    "causal, not a multiple of a tile": Case((1, 2, 2), 40, 40, 8, 8, True, dlse=True),
    "grouped heads, lengths, one sequence empty": Case((2, 4, 2), 33, 19, 12, 24, False, (17, 0), (20, 33), True),
    "causal, more keys than queries, lengths": Case((2, 2, 1), 19, 40, 24, 12, True, (17, 40), (19, 11)),
    "causal, more queries than keys": Case((1, 1, 1), 35, 18, 12, 8, True, dlse=True),
}
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


def draw(case: Case) -> dict[str, Tensor | None]:
    """Operands of a case, from a fixed seed."""
    b, h, h_kv = case.heads
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    operands = {
        "q": normal(b, h, case.n_q, case.d),
        "k": normal(b, h_kv, case.n_k, case.d),
        "v": normal(b, h_kv, case.n_k, case.d_v),
        "u": normal(b, h, case.n_q, case.d_v),
    }
    operands = {name: tensor.to(case.dtype) for name, tensor in operands.items()}
    operands["dlse"] = normal(b, h, case.n_q) if case.dlse else None
    return operands


def masks(case: Case) -> dict[str, Tensor | None]:
    def counts(values: tuple[int, ...] | None) -> Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.int32)

    return {"lengths": counts(case.lengths), "query_lengths": counts(case.query_lengths)}


def visible(case: Case) -> Tensor:
    """(B, 1, n_q, n_k) bool."""
    rows, keys = torch.arange(case.n_q)[:, None], torch.arange(case.n_k)
    seen = (keys <= rows) if case.causal else torch.ones(case.n_q, case.n_k, dtype=torch.bool)
    seen = seen.expand(case.heads[0], 1, -1, -1)
    for counts, index in ((case.lengths, keys), (case.query_lengths, rows)):
        if counts is not None:
            seen = seen & (index < torch.tensor(counts)[:, None, None, None])
    return seen


def dense(operands: dict[str, Tensor | None], case: Case, scale: float) -> dict[str, Tensor]:
    """Every result by the formulas of the gradient, N_q × N_k at a time, in float64."""
    q, k, v, u = (operands[name].double() for name in "qkvu")
    (b, h, h_kv), group = case.heads, case.heads[1] // case.heads[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    seen = visible(case)
    score = torch.where(seen, scale * (q @ k.mT), -math.inf).expand(b, h, -1, -1)
    lse = score.logsumexp(-1)
    live = seen.any(-1, keepdim=True)
    weight = torch.where(live, (score - torch.where(live, lse[..., None], 0)).exp(), 0)
    compatibility = u @ v.mT
    expected = (weight * compatibility).sum(-1)
    centred = compatibility - expected[..., None]
    dlse = 0 if operands["dlse"] is None else operands["dlse"].double()[..., None]
    gradient = weight * (centred + dlse)
    own_dv = weight.mT @ u

    def gather(x: Tensor) -> Tensor:
        return x.unflatten(1, (h_kv, group)).sum(2)

    # −Σ α log α loses the digits of a nearly one-hot row even in float64: the largest term, exactly 1, is left out.
    argmax = score.argmax(-1, keepdim=True)
    shifted = torch.where(weight > 0, score - score.gather(-1, argmax), 0)
    rest = torch.where(weight > 0, shifted.exp(), 0).scatter(-1, argmax, 0.0).sum(-1)
    entropy = rest.log1p() - (weight * shifted).sum(-1)
    results = [weight @ v, lse, entropy, weight.amax(-1)]
    results += [scale * gradient @ k, gather(scale * gradient.mT @ q), gather(own_dv)]
    results += [expected, (weight * centred.square()).sum(-1), gradient.square().sum(-1)]
    results += [weight.sum(-2), gradient.sum(-2), gradient.abs().sum(-2), own_dv.norm(dim=-1)]
    argmax = torch.where(live[..., 0], argmax[..., 0], -1)
    return dict(zip(NAMES.split(), results, strict=True)) | {"argmax": argmax}


def run(
    operands: dict[str, Tensor | None], case: Case, scale: float, name: str = "table", statistics: bool = True
) -> dict[str, Tensor]:
    """Both passes in the interpreter, all results by name."""
    chosen = schedules(name, case)
    common = {"causal": case.causal, "scale": scale, "statistics": statistics, **masks(case)}
    q, k, v, u = (operands[name] for name in "qkvu")
    forward = only_result(FORWARD, "forward", q, k, v, schedule=chosen["forward"], **common)
    backward = only_result(
        BACKWARD,
        "backward",
        *(q, k, v, forward.o, forward.lse, u),
        dlse=operands["dlse"],
        schedule=chosen["backward"],
        **common,
    )
    results = {**forward._asdict(), "dq": backward.dq, "dk": backward.dk, "dv": backward.dv}
    return results if not statistics else results | backward.rows._asdict() | backward.columns._asdict()


def check(operands: dict[str, Tensor | None], case: Case, name: str = "table") -> None:
    scale = 1 / math.sqrt(case.d)
    actual, exact = run(operands, case, scale, name), dense(operands, case, scale)
    for quantity in NAMES.split():
        assert_close(actual[quantity], exact[quantity], TOLERANCE[case.dtype], quantity)
    assert torch.equal(actual["argmax"].long(), exact["argmax"])


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
