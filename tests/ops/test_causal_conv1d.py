"""The causal convolution against float64: values, states, sequence indices, gradients, layouts, transforms."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from bayesattn_fast.ops import causal_conv1d as ops
from bayesattn_fast.ops.causal_conv1d import causal_conv1d_fn, causal_conv1d_seeds, causal_conv1d_update
from tests.closeness import assert_close
from tests.ops.scan_cases import LAYOUTS, laid_out


def by_hand(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """One position and one tap at a time."""
    width = weight.shape[-1]
    rows = []
    for t in range(x.shape[-1]):
        total = torch.zeros_like(x[..., 0]) if bias is None else bias.expand_as(x[..., 0])
        for k in range(width):
            s = t - width + 1 + k
            if s < 0 and initial_states is None:
                continue
            value = x[..., s] if s >= 0 else initial_states[..., s + width - 1]  # type: ignore[index]
            if seq_idx is not None:
                value = value * (seq_idx[:, max(s, 0)] == seq_idx[:, t])[:, None]
            total = total + weight[:, k] * value
        rows.append(total if seq_idx is None else total * (seq_idx[:, t] >= 0)[:, None])
    pre = torch.stack(rows, -1)
    return pre if activation is None else F.silu(pre)


def draw(
    width: int, length: int, flags: tuple[bool, bool, bool], layout: str = "plain", batch: int = 2, channels: int = 19
) -> dict[str, Tensor]:
    """x, weight and the optional bias, initial_states, seq_idx (with negative entries), as flagged."""
    biased, started, indexed = flags
    generator = torch.Generator().manual_seed(1000 * width + length)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    made = {"x": laid_out(normal(batch, channels, length), layout), "weight": laid_out(normal(channels, width), layout)}
    if biased:
        made["bias"] = normal(channels)
    if started:
        made["initial_states"] = laid_out(normal(batch, channels, width - 1), layout)
    if indexed:
        made["seq_idx"] = torch.randint(-1, 3, (batch, length), generator=generator).sort(-1).values.int()
    return {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in made.items()}


def gradients(out: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    leaves = {n: t for n, t in tensors.items() if t.requires_grad}
    return dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), upstream), strict=True))


def in_float64(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.detach().double().requires_grad_() if t.is_floating_point() else t for n, t in tensors.items()}


def assert_equals_by_hand(tensors: dict[str, Tensor], activation: str | None, tolerance: float) -> None:
    exact = in_float64(tensors)
    expected = by_hand(**exact, activation=activation)
    out = causal_conv1d_fn(**tensors, activation=activation)
    assert isinstance(out, Tensor)
    assert_close(out, expected, tolerance, "out")
    wanted = gradients(expected, exact)
    for name, value in gradients(out, tensors).items():
        assert_close(value, wanted[name], tolerance, f"d{name}")


FLAGS = list(itertools.product((False, True), repeat=3))


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
def test_every_option_equals_the_sum_by_hand(width: int, activation: str | None) -> None:
    for flags, length in itertools.product(FLAGS, (1, 2, 5, 66)):
        assert_equals_by_hand(draw(width, length, flags), activation, 2e-6)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_float64_is_exact(width: int) -> None:
    for flags in FLAGS:
        assert_equals_by_hand(in_float64(draw(width, 7, flags)), "silu", 1e-13)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(2, 4), st.integers(1, 200), st.sampled_from(FLAGS), st.sampled_from(LAYOUTS), st.integers(1, 5),
    st.integers(1, 70),
)  # fmt: skip
def test_any_shape_and_layout_equals_the_sum_by_hand(
    width: int, length: int, flags: tuple[bool, bool, bool], layout: str, batch: int, channels: int
) -> None:
    assert_equals_by_hand(draw(width, length, flags, layout, batch, channels), "silu", 2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precisions_accumulate_in_float32(dtype: torch.dtype, tolerance: float) -> None:
    tensors = draw(4, 70, (True, True, False))
    half = {
        n: t.detach().to(dtype if n in ("x", "initial_states") else t.dtype).requires_grad_()
        for n, t in tensors.items()
    }
    assert_equals_by_hand(half, "silu", tolerance)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("started", [False, True])
def test_final_states_are_the_last_inputs_and_carry_gradients(length: int, started: bool) -> None:
    tensors = draw(4, length, (True, started, False))
    before = tensors["initial_states"] if started else torch.zeros(2, 19, 3)
    expected = torch.cat([before, tensors["x"]], -1)[..., -3:]
    out, final = causal_conv1d_fn(**tensors, return_final_states=True)
    assert torch.equal(final, expected)
    names = [n for n in tensors if n != "weight"]
    total = out.sum() + final.square().sum()
    exact = by_hand(**tensors).sum() + expected.square().sum()
    for a, b in zip(*(torch.autograd.grad(t, [tensors[n] for n in names]) for t in (total, exact)), strict=True):
        assert_close(a, b, 1e-6)
    given = torch.empty(2, 19, 3)
    causal_conv1d_fn(**tensors, return_final_states=True, final_states_out=given)
    assert torch.equal(given, expected)


def test_two_halves_joined_by_their_states_equal_the_whole() -> None:
    tensors = draw(4, 21, (True, False, False))
    whole = causal_conv1d_fn(**tensors, activation="silu")
    x = tensors.pop("x")
    first, states = causal_conv1d_fn(x[..., :8], **tensors, return_final_states=True, activation="silu")
    second = causal_conv1d_fn(x[..., 8:], **tensors, initial_states=states, activation="silu")
    assert_close(torch.cat([first, second], -1), whole, 1e-6)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_step_by_step_equals_the_whole(size: int) -> None:
    tensors = {n: t.detach() for n, t in draw(4, 11, (True, False, False)).items()}
    whole = causal_conv1d_fn(**tensors, activation="silu")
    x, state = tensors.pop("x"), torch.zeros(2, 19, size)
    for i in range(11):
        out = causal_conv1d_update(x[..., i], state, tensors["weight"], tensors["bias"], "silu")
        assert_close(out, whole[..., i], 1e-6)
    assert torch.equal(state, x[..., 11 - size :])
    state.zero_()
    assert_close(causal_conv1d_update(x, state, tensors["weight"], tensors["bias"], "silu"), whole, 1e-6)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_a_circular_buffer_in_chosen_rows_gives_the_whole_sequence(size: int) -> None:
    tensors = {n: t.detach() for n, t in draw(4, 11, (True, False, False)).items()}
    whole = causal_conv1d_fn(**tensors, activation="silu")
    x, rows, before = tensors["x"], torch.tensor([3, 1]), torch.zeros(2, dtype=torch.int32)
    state = torch.full((4, 19, size), 7.0)
    state[rows] = 0
    outs = []
    for steps in (1, 2, 1, 7):  # at last more steps than places
        part = x[..., int(before[0]) : int(before[0]) + steps]
        outs.append(causal_conv1d_update(part, state, tensors["weight"], tensors["bias"], "silu", before, rows))
        before += steps
    assert_close(torch.cat(outs, -1), whole, 1e-6)
    assert torch.equal(state[rows][..., torch.arange(11 - size, 11) % size], x[..., 11 - size :])
    assert (state[[0, 2]] == 7).all()


def test_sequences_of_different_ages_share_one_circular_buffer() -> None:
    tensors = {n: t.detach() for n, t in draw(3, 9, (False, False, False)).items()}
    x, weight, state = tensors["x"], tensors["weight"], torch.zeros(2, 19, 4)
    ages = torch.tensor([5, 2])
    for sequence, age in enumerate(ages):
        alone = state[sequence : sequence + 1]
        causal_conv1d_update(x[sequence : sequence + 1, :, :age], alone, weight, cache_seqlens=torch.zeros(1).int())
    now = torch.stack([x[0, :, 5], x[1, :, 2]])
    whole = causal_conv1d_fn(x, weight)
    expected = torch.stack([whole[0, :, 5], whole[1, :, 2]])
    assert_close(causal_conv1d_update(now, state, weight, cache_seqlens=ages), expected, 1e-6)


def test_states_that_would_be_cut_to_integers_are_refused() -> None:
    whole = torch.zeros(2, 6, 4, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"conv_state must be a real float tensor; got torch\.int32"):
        causal_conv1d_update(X[..., 0], whole, W)
    with pytest.raises(TypeError, match=r"final_states_out must be a real float tensor; got torch\.int32"):
        causal_conv1d_fn(X, W, return_final_states=True, final_states_out=whole[..., :3])
    with pytest.raises(ValueError, match=r"cache_seqlens must have shape \(B,\) = \(2,\); got \(3,\)"):
        causal_conv1d_update(X[..., 0], torch.zeros(2, 6, 4), W, cache_seqlens=torch.zeros(3).int())


def test_nan_outside_the_reach_of_a_position_does_not_leak() -> None:
    tensors = draw(2, 40, (True, False, True))
    tensors = {n: t.detach().clone() for n, t in tensors.items()}
    clean = causal_conv1d_fn(**tensors)
    tensors["x"][0, 3, 17] = torch.nan
    out = causal_conv1d_fn(**tensors)
    reached = torch.zeros_like(out, dtype=torch.bool)
    reached[0, 3, 17:19] = True
    assert torch.equal(out[~reached], clean[~reached])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    seen = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            tensors = draw(4, 150, (True, True, False), batch=5, channels=40)
            seen.append(gradients(causal_conv1d_fn(**tensors, activation="silu"), tensors))
    finally:
        torch.set_num_threads(before)
    for other in seen[1:]:
        assert all(torch.equal(g, other[n]) for n, g in seen[0].items())


def test_seeds_use_their_own_weights_and_vmap_agrees() -> None:
    seeds = [{n: t.detach() for n, t in draw(4, 20, (True, False, False)).items()} for _ in range(2)]
    seeds[1] = {n: 0.5 * t for n, t in seeds[1].items()}
    stacked = {n: torch.stack([s[n] for s in seeds]) for n in seeds[0]}
    out = causal_conv1d_seeds(**stacked, activation="silu")
    mapped = vmap(lambda x, w, b: causal_conv1d_fn(x, w, b, activation="silu"))(*stacked.values())
    assert torch.equal(out, mapped)
    for i, alone in enumerate(seeds):
        assert torch.equal(out[i], causal_conv1d_fn(**alone, activation="silu"))

    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return causal_conv1d_fn(x, w, b, activation="silu").square().sum()

    x, weight, bias = seeds[0]["x"], stacked["weight"], stacked["bias"]
    per_seed = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=(None, 0, 0))(x, weight, bias)
    for i in range(2):
        exact = grad(loss, argnums=(0, 1, 2))(x, weight[i], bias[i])
        for a, b in zip(per_seed, exact, strict=True):
            assert_close(a[i], b, 1e-6)


def test_derivatives_pass_gradcheck_and_ops_pass_opcheck() -> None:
    exact = in_float64(draw(3, 5, (True, True, True), channels=2))
    leaves = [n for n in exact if n != "seq_idx"]

    def call(*given: Tensor) -> Tensor:
        return causal_conv1d_fn(**dict(zip(leaves, given, strict=True)), seq_idx=exact["seq_idx"], activation="silu")

    assert torch.autograd.gradcheck(call, tuple(exact[n] for n in leaves))
    assert torch.autograd.gradgradcheck(call, tuple(exact[n] for n in leaves))
    for layout in LAYOUTS[:2]:
        t = {n: v.detach()[None] for n, v in draw(4, 9, (True, True, False), layout).items()}
        given = (t["x"], t["weight"], t["bias"], None, t["initial_states"], True)
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(ops.conv_forward, given, test_utils=tests)
        torch.library.opcheck(ops.conv_backward, (torch.randn_like(t["x"]), *given), test_utils=tests)


def test_compiled_fullgraph_equals_eager() -> None:
    torch.compiler.reset()
    tensors = draw(4, 30, (True, True, False))
    compiled = torch.compile(causal_conv1d_fn, fullgraph=True, backend="aot_eager")
    ours = gradients(compiled(**tensors, activation="silu"), tensors)
    for name, exact in gradients(causal_conv1d_fn(**tensors, activation="silu"), tensors).items():
        assert_close(ours[name], exact, 1e-6, name)


X, W = torch.zeros(2, 6, 9), torch.zeros(6, 4)
BAD = {
    "width 5": ({"weight": torch.zeros(6, 5)}, ValueError, "width 2, 3 or 4"),
    "width 1": ({"weight": torch.zeros(6, 1)}, ValueError, "width 2, 3 or 4"),
    "channels": ({"weight": torch.zeros(5, 4)}, ValueError, "weight must have shape"),
    "bias": ({"bias": torch.zeros(5)}, ValueError, "bias must have shape"),
    "states": ({"initial_states": torch.zeros(2, 6, 4)}, ValueError, "initial_states must have shape"),
    "no positions": ({"x": torch.zeros(2, 6, 0)}, ValueError, "at least one channel"),
    "two axes": ({"x": torch.zeros(6, 9)}, ValueError, "x must be"),
    "complex": ({"x": X.to(torch.complex64)}, TypeError, "x must be a real float"),
    "activation": ({"activation": "gelu"}, ValueError, "'gelu'"),
    "float index": ({"seq_idx": torch.zeros(2, 9)}, TypeError, "seq_idx must hold integers"),
    "index and states": (
        {"seq_idx": torch.zeros(2, 9).int(), "return_final_states": True},
        ValueError,
        "cannot be combined",
    ),
    "unasked states": ({"final_states_out": torch.zeros(2, 6, 3)}, ValueError, "without return_final_states"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_by_name(what: str) -> None:
    change, error, message = BAD[what]
    with pytest.raises(error, match=message):
        causal_conv1d_fn(**{"x": X, "weight": W, **change})


def test_an_empty_batch_gives_zero_gradients_of_the_weights() -> None:
    tensors = draw(4, 9, (True, True, False), batch=0)
    found = gradients(causal_conv1d_fn(**tensors), tensors)
    assert found["x"].shape == (0, 19, 9)
    assert not found["weight"].any()
    assert not found["bias"].any()
