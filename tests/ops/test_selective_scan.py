"""The selective scan against float64: values, last state, every gradient, every option, shape and layout."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.ops.selective_scan import selective_scan_fn, selective_scan_seeds, selective_state_update
from tests.closeness import assert_close
from tests.ops.scan_cases import LAYOUTS, Case, cases, draw_tensors, in_float64, results, with_dtype


def dense_scan(case: Case, t: dict[str, Tensor]) -> dict[str, Tensor]:
    """The scan without its recurrence: h_t = Σ_{s ≤ t} exp(A Σ_{s < r ≤ t} Δ_r) Δ_s B_s u_s, all pairs (t, s)."""
    channels, length = t["u"].shape[1:]

    def wide(matrix: Tensor) -> Tensor:
        if matrix.dim() == 2:
            return matrix[None, :, :, None].expand(t["u"].shape[0], -1, -1, length)
        matrix = matrix if matrix.dim() == 4 else matrix[:, None]
        return matrix.repeat_interleave(channels // matrix.shape[1], 1)

    step = t["delta"] + (t["delta_bias"][:, None] if "delta_bias" in t else 0)
    step = torch.log1p(torch.exp(step)) if case.softplus else step
    elapsed = step.cumsum(-1)
    gap = (elapsed[..., :, None] - elapsed[..., None, :]).tril()
    decay = torch.exp(gap[:, :, None] * t["A"][:, :, None, None]).tril()
    h = torch.einsum("bdnts,bds,bdns->bdnt", decay, step * t["u"], wide(t["B"]))
    y = (h * wide(t["C"])).sum(2)
    y = y + t["D"][:, None] * t["u"] if "D" in t else y
    y = y * t["z"] * torch.sigmoid(t["z"]) if "z" in t else y
    return {"out": y, "last_state": h[..., -1]}


FORM_PAIRS = list(itertools.product(("fixed", "varying", "grouped"), repeat=2))
OPTION_SETS = [
    tuple(name for name, used in zip(("D", "z", "delta_bias"), flags, strict=True) if used)
    for flags in itertools.product((False, True), repeat=3)
]


@pytest.mark.parametrize("forms", FORM_PAIRS)
def test_every_option_equals_the_closed_sum_in_float64(forms: tuple[str, str]) -> None:
    for options, softplus in itertools.product(OPTION_SETS, (False, True)):
        case = Case(length=11, B=forms[0], C=forms[1], options=options, softplus=softplus)
        tensors = in_float64(draw_tensors(case))
        expected = dense_scan(case, tensors)
        out, last = selective_scan_fn(**tensors, delta_softplus=softplus, return_last_state=True)
        assert_close(out, expected["out"], 1e-12, f"out {options} {softplus}")
        assert_close(last, expected["last_state"], 1e-12, f"last_state {options} {softplus}")
        upstream = [torch.randn_like(out), torch.randn_like(last)]
        ours = torch.autograd.grad([out, last], list(tensors.values()), upstream)
        exact = torch.autograd.grad(list(expected.values()), list(tensors.values()), upstream)
        for name, gradient, wanted in zip(tensors, ours, exact, strict=True):
            assert_close(gradient, wanted, 1e-11, f"d{name} {options} {softplus}")


def assert_equals_float64(case: Case, tolerance: float) -> None:
    tensors = draw_tensors(case)
    exact = results(case, in_float64(tensors))
    for name, value in results(case, tensors).items():
        assert_close(value, exact[name], tolerance, f"{name} of {case}")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_float32_equals_float64_to_5e_6_for_any_shape_form_and_layout(case: Case) -> None:
    assert_equals_float64(case, 5e-6)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cases(elements=50_000))
def test_bfloat16_equals_float64_to_1e_2(case: Case) -> None:
    assert_equals_float64(with_dtype(case, torch.bfloat16), 1e-2)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(cases(elements=50_000))
def test_float16_equals_float64_to_2e_3(case: Case) -> None:
    assert_equals_float64(with_dtype(case, torch.float16), 2e-3)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 127, 129])
def test_tails_of_tiles_and_chunks_are_exact(length: int) -> None:
    # A padded step is no identity once softplus or a bias is on: the tail must not be stepped through at all.
    assert_equals_float64(Case(channels=17, states=3, length=length), 5e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_give_the_same_result(layout: str, dtype: torch.dtype) -> None:
    case = Case(channels=18, length=70, layout=layout, dtype=dtype)
    tensors = draw_tensors(case)
    plain = {
        name: t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for name, t in tensors.items()
    }
    expected = results(case, plain)
    for name, value in results(case, tensors).items():
        assert_close(value, expected[name], 1e-6 if dtype == torch.float32 else 4e-3, name)


def test_upstream_gradient_of_stride_zero_is_read_through_its_strides() -> None:
    case = Case(channels=18)
    tensors = draw_tensors(case)
    out = selective_scan_fn(**tensors, delta_softplus=True)
    ours = torch.autograd.grad(out.sum(), list(tensors.values()))
    dense = torch.autograd.grad(
        selective_scan_fn(**tensors, delta_softplus=True), list(tensors.values()), torch.ones_like(out)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, dense, strict=True))


def test_large_steps_and_decays_stay_finite_and_exact() -> None:
    case = Case(channels=20, states=5, length=90, softplus=False)
    tensors = {name: t.detach() for name, t in draw_tensors(case).items()}
    tensors["delta"] = torch.rand(tensors["delta"].shape) * 50
    tensors["A"] = -torch.rand(tensors["A"].shape) * 100
    tensors = {name: t.requires_grad_() for name, t in tensors.items()}
    exact = results(case, in_float64(tensors))
    for name, value in results(case, tensors).items():
        assert value.isfinite().all(), name
        assert_close(value, exact[name], 5e-6, name)


def test_negative_steps_make_the_state_grow_as_written() -> None:
    case = Case(length=20, softplus=False, options=())
    tensors = draw_tensors(case)
    grown = {**tensors, "delta": (-0.1 * tensors["delta"].detach()).requires_grad_()}
    exact = results(case, in_float64(grown))
    for name, value in results(case, grown).items():
        assert_close(value, exact[name], 5e-6, name)


def test_softplus_keeps_relative_precision_of_tiny_and_huge_steps() -> None:
    delta = torch.tensor([-80.0, -30.0, -15.0, -1.0, 0.0, 1.0, 15.0, 19.9, 20.1, 60.0]).reshape(1, 1, -1)
    ones, one = torch.ones_like(delta), torch.ones(1, 1)
    last_only = [
        selective_scan_fn(ones[..., :1], delta[..., i : i + 1], one, one, one, delta_softplus=True).item()
        for i in range(delta.shape[-1])
    ]
    exact = torch.nn.functional.softplus(delta.double()).flatten()
    assert ((torch.tensor(last_only).double() - exact) / exact).abs().max() < 5e-7


def test_nan_and_infinity_in_one_sequence_stay_in_it() -> None:
    tensors = {name: t.detach() for name, t in draw_tensors(Case(batch=3, channels=20, options=())).items()}
    clean = selective_scan_fn(**tensors, delta_softplus=True)
    spoilt = {**tensors, "u": tensors["u"].clone()}
    spoilt["u"][1, 3, 20], spoilt["u"][1, 7, 5] = torch.nan, torch.inf
    out = selective_scan_fn(**spoilt, delta_softplus=True)
    assert out[1, 3, 20:].isnan().all()
    assert not out[1, 7, 5:].isfinite().any()
    keep = torch.ones_like(out, dtype=torch.bool)
    keep[1, 3, 20:] = keep[1, 7, 5:] = False
    assert torch.equal(out[keep], clean[keep])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    case = Case(batch=5, channels=40, length=130, B="grouped", C="fixed")
    before = torch.get_num_threads()
    try:
        seen = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            seen.append(results(case, draw_tensors(case)))
    finally:
        torch.set_num_threads(before)
    for other in seen[1:]:
        assert all(torch.equal(value, other[name]) for name, value in seen[0].items())


def test_native_and_reference_back_ends_agree() -> None:
    case = Case(channels=20, length=70, B="grouped", C="grouped")
    native = results(case, draw_tensors(case))
    with backend("reference"):
        plain = results(case, draw_tensors(case))
    for name, value in native.items():
        assert_close(value, plain[name], 5e-6, name)


def test_one_group_is_shared_with_a_grouped_partner() -> None:
    case = Case(B="varying", C="grouped")
    assert_equals_float64(case, 5e-6)


def test_mixed_dtypes_are_promoted_and_the_output_has_the_dtype_of_u() -> None:
    case = Case(channels=9)
    tensors = draw_tensors(case)
    mixed = {**tensors, "u": tensors["u"].detach().bfloat16().requires_grad_()}
    out = selective_scan_fn(**mixed, delta_softplus=True)
    assert out.dtype == torch.bfloat16
    exact = selective_scan_fn(**{**tensors, "u": mixed["u"].detach().float()}, delta_softplus=True)
    assert_close(out, exact, 4e-3)
    assert torch.autograd.grad(out.float().sum(), mixed["u"])[0].dtype == torch.bfloat16


def test_layout_of_the_input_is_kept_by_the_output() -> None:
    tensors = draw_tensors(Case(layout="channel_last"))
    assert selective_scan_fn(**tensors, delta_softplus=True).stride() == tensors["u"].stride()


def test_seeds_scan_with_their_own_parameters_as_if_alone() -> None:
    per_seed = [draw_tensors(Case(channels=20, length=70, seed=s)) for s in (1, 2, 3)]
    stacked = {name: torch.stack([t[name].detach() for t in per_seed]).requires_grad_() for name in per_seed[0]}
    given = {**stacked, **{name: stacked[name].unsqueeze(2) for name in ("B", "C")}}
    out = selective_scan_seeds(**given, delta_softplus=True)
    gradients = torch.autograd.grad(out.cos().sum(), list(stacked.values()))
    for seed, alone in enumerate(per_seed):
        single = selective_scan_fn(**alone, delta_softplus=True)
        assert torch.equal(out[seed], single)
        expected = torch.autograd.grad(single.cos().sum(), list(alone.values()))
        for name, ours, exact in zip(stacked, gradients, expected, strict=True):
            assert_close(ours[seed], exact, 1e-6, name)


def test_weights_shared_by_stride_zero_get_one_gradient_a_seed() -> None:
    tensors = draw_tensors(Case(channels=5, options=()))
    u = torch.stack([tensors["u"], 2 * tensors["u"]])
    rest = {name: tensors[name][None].expand(2, *tensors[name].shape) for name in ("delta", "A")}
    matrices = {name: tensors[name][None, :, None].expand(2, -1, -1, -1, -1) for name in ("B", "C")}
    out = selective_scan_seeds(u, **rest, **matrices, delta_softplus=True)
    (dA,) = torch.autograd.grad(out.sum(), tensors["A"])
    names = ("delta", "A", "B", "C")
    both = torch.zeros_like(dA)
    for k in (1, 2):
        alone = selective_scan_fn(k * tensors["u"], *(tensors[n] for n in names), delta_softplus=True)
        both += torch.autograd.grad(alone.sum(), tensors["A"])[0]
    assert_close(dA, both, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_by_step_equals_the_whole_sequence(dtype: torch.dtype) -> None:
    case = Case(length=12)
    tensors = {name: t.detach().to(dtype) for name, t in draw_tensors(case).items()}
    whole, last = selective_scan_fn(**tensors, delta_softplus=True, return_last_state=True)
    state = torch.zeros(last.shape, dtype=dtype)
    for i in range(case.length):
        at = {name: tensors[name][..., i] for name in ("u", "delta", "B", "C", "z")}
        out = selective_state_update(
            *(state, at["u"], at["delta"], tensors["A"], at["B"], at["C"], tensors["D"], at["z"]),
            dt_bias=tensors["delta_bias"],
            dt_softplus=True,
        )
        assert_close(out, whole[..., i], 1e-12 if dtype == torch.float64 else 2e-6)
    assert_close(state, last, 1e-12 if dtype == torch.float64 else 2e-6)


def test_state_update_with_heads_equals_one_call_a_head() -> None:
    batch, heads, channels, count = 3, 4, 5, 6
    state, x, dt = torch.randn(batch, heads, channels, count), *torch.randn(2, batch, heads, channels)
    A, B, C = -torch.rand(heads, channels, count), torch.randn(batch, 2, count), torch.randn(batch, 2, count)
    D, bias = torch.randn(2, heads, channels)
    apart = [state[:, h].clone() for h in range(heads)]
    out = selective_state_update(state, x, dt, A, B, C, D, None, bias, True)
    for h in range(heads):
        single = selective_state_update(
            apart[h], x[:, h], dt[:, h], A[h], B[:, h // 2], C[:, h // 2], D[h], None, bias[h], True
        )
        assert_close(out[:, h], single, 1e-6)
        assert_close(state[:, h], apart[h], 1e-6)


def test_state_update_reads_and_writes_the_rows_that_it_is_told() -> None:
    cache, rows = torch.randn(7, 5, 6), torch.tensor([4, 0, 6])
    x, dt, z = torch.randn(3, 3, 5)
    A, (B, C) = -torch.rand(5, 6), torch.randn(2, 3, 6)
    alone, expected = cache[rows], cache.clone()
    out = selective_state_update(alone, x, dt, A, B, C, z=z, dt_softplus=True)
    expected[rows] = alone
    assert torch.equal(selective_state_update(cache, x, dt, A, B, C, None, z, None, True, rows), out)
    assert torch.equal(cache, expected)
    with pytest.raises(ValueError, match=r"state_batch_indices must have shape \(B,\) = \(3,\); got \(2,\)"):
        selective_state_update(cache, x, dt, A, B, C, state_batch_indices=rows[:2])


@pytest.mark.parametrize("name", ["state", "x", "dt", "A", "B", "C", "D"])
def test_state_update_refuses_complex_integer_and_far_tensors(name: str) -> None:
    state, A, D = torch.zeros(2, 5, 6), -torch.rand(5, 6), torch.ones(5)
    (x, dt), (B, C) = torch.randn(2, 2, 5), torch.randn(2, 2, 6)
    given = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D}
    for bad, error in (
        (given[name].to(torch.complex64), TypeError),
        (given[name].int(), TypeError),
        (given[name].to("meta"), ValueError),
    ):
        with pytest.raises(error, match=rf"\b{name}\b (is|must be)|, {name} on"):
            selective_state_update(**{**given, name: bad})


BAD = {
    "A must be real": ({"A": torch.zeros(6, 4, dtype=torch.complex64)}, TypeError, "A is torch.complex64"),
    "integers": ({"u": torch.zeros(2, 6, 37, dtype=torch.int64)}, TypeError, "u must be a float tensor"),
    "delta of another shape": (
        {"delta": torch.zeros(2, 6, 36)},
        ValueError,
        r"delta must have shape \(B, D, L\) = \(2, 6, 37\); got \(2, 6, 36\)",
    ),
    "A of another width": ({"A": torch.zeros(5, 4)}, ValueError, "A must have shape"),
    "B with other states": (
        {"B": torch.zeros(2, 5, 37)},
        ValueError,
        r"B must have shape \(B, N, L\) = \(2, 4, 37\); got \(2, 5, 37\)",
    ),
    "groups that do not divide": ({"C": torch.zeros(2, 4, 4, 37)}, ValueError, "C has 4 groups"),
    "D of another width": ({"D": torch.zeros(5)}, ValueError, "D must have shape"),
    "z of another shape": ({"z": torch.zeros(2, 6, 1)}, ValueError, "z must have shape"),
    "bias of another shape": ({"delta_bias": torch.zeros(6, 1)}, ValueError, "delta_bias must have shape"),
    "no positions": ({"u": torch.zeros(2, 6, 0), "delta": torch.zeros(2, 6, 0)}, ValueError, "at least one channel"),
    "two axes": ({"u": torch.zeros(6, 37)}, ValueError, "u must be"),
    "another device": ({"A": torch.zeros(6, 4, device="meta")}, ValueError, "A is on meta"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    change, error, message = BAD[what]
    tensors = {name: t.detach() for name, t in draw_tensors(Case()).items()}
    with pytest.raises(error, match=message):
        selective_scan_fn(**{**tensors, **change})


def test_an_empty_batch_gives_zero_gradients_of_the_weights() -> None:
    tensors = draw_tensors(Case(batch=0))
    found = results(Case(batch=0), tensors)
    assert found["out"].shape == (0, 6, 37)
    assert all(not found[f"d{name}"].any() for name in ("A", "D", "delta_bias"))
