"""The native attention kernels against the float64 definition."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesattn_fast.kernels.attention import native, reference
from tests.closeness import assert_close, relative_error
from tests.ops.attention_cases import DTYPES, Case, assert_accurate, case, cases, permuted

RELAXED: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=70, **RELAXED)
@given(cases(torch.float32))
def test_every_result_in_float32_is_within_2e_6_of_float64(made: Case) -> None:
    assert_accurate(made, made.results(native))


@settings(max_examples=60, **RELAXED)
@given(cases(torch.float32, logits=(100.0, 1e3, 1e4)))
def test_scores_up_to_ten_thousand_keep_2e_6_in_every_result(made: Case) -> None:
    """Where float32 products are off by up to 1e-3, and rows are one-hot but for weights of any size."""
    assert_accurate(made, made.results(native), or_as_good_as_plain=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=20, **RELAXED)
@given(st.data())
def test_sharp_attention_keeps_its_accuracy(dtype: torch.dtype, data: st.DataObject) -> None:
    made = data.draw(cases(dtype, logits=(5.0, 10.0, 20.0, 40.0)))
    assert_accurate(made, made.results(native))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@settings(max_examples=25, **RELAXED)
@given(st.data())
def test_every_result_in_half_precision_is_within_its_rounding_of_float64(
    dtype: torch.dtype, data: st.DataObject
) -> None:
    made = data.draw(cases(dtype))
    assert_accurate(made, made.results(native))


@pytest.mark.parametrize("width", [1, 8, 12, 16, 24, 33, 100, 256])
@pytest.mark.parametrize("length", [1, 2, 15, 17, 40])
def test_small_and_odd_sizes_are_accurate(width: int, length: int) -> None:
    made = case((2, 2, 1, length, length, width, width))
    assert_accurate(made, made.results(native))


def test_a_head_longer_than_one_tile_is_accurate() -> None:
    made = case((1, 2, 1, 700, 700, 8, 8), dlse=True)
    assert_accurate(made, made.results(native))


@pytest.mark.parametrize("causal", [True, False])
def test_logits_up_to_ten_thousand_keep_full_accuracy(causal: bool) -> None:
    """Whole numbers, so that float32 scores are exact and only the kernel's own arithmetic can err."""
    made = case((2, 2, 2, 100, 100, 16, 16), causal=causal, scale=1.0)
    generator = torch.Generator().manual_seed(1)
    for x in (made.q, made.k):
        x.copy_(torch.randint(-36, 37, x.shape, generator=generator))
    # Keys come in pairs whose scores differ by at most 2: rows are not one-hot and gradients do not vanish.
    made.k[:, :, 1::2, :14] = made.k[:, :, ::2, :14]
    made.k[..., 14], made.q[..., 14] = made.k[..., 14] % 3, 1.0
    scores = made.q.double() @ made.k.double().mT
    assert 5_000 < scores.abs().max() < 20_000
    exact, found = made.double().results(reference), made.results(native)
    for name in exact.keys() - {"argmax"}:
        assert_close(found[name], exact[name], 2e-6, name)
    assert torch.equal(found["argmax"], exact["argmax"])
    assert float(exact["dq"].norm()) > 1


def test_entropy_of_near_one_hot_rows_is_non_negative_and_accurate() -> None:
    """Row gaps of 0 to 80 nats: entropies down to 1e-34 beside scores of 1e4, where lse − E[s] would cancel."""
    made = case((1, 1, 1, 80, 2, 1, 1), causal=False, scale=1.0)
    made.q.fill_(1.0)
    made.k[..., 0] = torch.tensor([10_000.0, 9_999.0])
    made.q[0, 0, :, 0] = torch.arange(1.0, 81.0)
    made.k -= 9_990.0
    exact, found = made.double().results(reference)["entropy"], made.results(native)["entropy"]
    assert bool((found >= 0).all())
    assert float(((found.double() - exact).abs() / exact).max()) < 3e-6


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_entropy_is_never_negative(dtype: torch.dtype) -> None:
    for scale in (0.1, 3.0, 300.0):
        made = case((2, 4, 2, 50, 50, 16, 16), dtype, scale=scale)
        assert bool((made.results(native)["entropy"] >= 0).all())


@pytest.mark.parametrize("shape", [(0, 2, 1, 5, 5, 8, 8), (2, 2, 1, 0, 5, 8, 8), (2, 2, 1, 5, 0, 8, 8)])
@pytest.mark.parametrize("implementation", [native, reference])
def test_empty_batches_rows_and_keys_give_empty_or_zero_results(shape: Any, implementation: Any) -> None:
    results = case(shape).results(implementation)
    assert results["o"].shape == (shape[0], 2, shape[3], 8)
    assert results["dk"].shape == (shape[0], 1, shape[4], 8)
    for name, x in results.items():
        if name not in ("lse", "argmax"):
            assert float(x.abs().sum()) == 0.0, name


def test_expanded_inputs_and_upstream_gradient_equal_their_copies() -> None:
    made = case((2, 4, 2, 33, 33, 16, 16))
    made.q = made.q[:, :1].expand_as(made.q)
    made.k = made.k[:1].expand_as(made.k)
    made.v = made.v[:, :, :1].expand_as(made.v)
    made.u = torch.tensor(0.5).expand_as(made.u)
    copies = Case(*(x.contiguous() for x in (made.q, made.k, made.v, made.u)), None, made.options)
    wanted = copies.results(native)
    for name, x in made.results(native).items():
        assert_close(x, wanted[name], 1e-6, name)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("layout", ["rows first", "strided", "columns first"])
def test_memory_layout_does_not_change_a_bit(layout: str, dtype: torch.dtype) -> None:
    made = case((2, 4, 2, 33, 40, 16, 24), dtype, causal=False)
    moved = Case(*(permuted(x, layout) for x in (made.q, made.k, made.v, made.u)), None, made.options)
    wanted = made.results(native)
    for name, x in moved.results(native).items():
        assert torch.equal(x, wanted[name]), name


def test_statistics_do_not_change_the_other_results() -> None:
    with_statistics = case((2, 4, 2, 70, 70, 16, 16))
    without = case((2, 4, 2, 70, 70, 16, 16), statistics=False)
    wanted = with_statistics.results(native)
    for name, x in without.results(native).items():
        assert relative_error(x, wanted[name]) < 3e-7, name
