"""The public surface: torch's signature, closed forms on request, recording, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels.attention import reference
from bayesattn_fast.ops import attention as module
from bayesattn_fast.ops.attention import (
    attention,
    attention_dynamics,
    record_dynamics,
    scaled_dot_product_attention,
)
from tests.closeness import assert_close
from tests.ops.attention_cases import case

torch_attention = torch.nn.functional.scaled_dot_product_attention


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("lead", [(), (4,), (2, 4), (3, 2, 4)])
def test_torch_signature_gives_torch_results_for_any_number_of_dimensions(
    lead: tuple[int, ...], is_causal: bool
) -> None:
    q, k, v = (normal(*lead, n, 8, seed=n) for n in (7, 11, 11))
    found = scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.4)
    exact = torch_attention(q.double(), k.double(), v.double(), is_causal=is_causal, scale=0.4)
    assert_close(found, exact, 1e-6)


def test_torch_signature_shares_key_heads_only_when_asked() -> None:
    q, k, v = normal(2, 6, 9, 8), normal(2, 2, 9, 8, seed=1), normal(2, 2, 9, 8, seed=2)
    found = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_close(found, torch_attention(q, k, v, enable_gqa=True), 1e-6)
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.ones(9, 9, dtype=torch.bool).tril(2)},
        {"attn_mask": normal(2, 1, 9, 9)},
        {"dropout_p": 0.5},
    ],
)
def test_what_the_kernels_do_not_take_is_torch_to_the_bit(options: dict[str, Any]) -> None:
    q, k, v = (normal(2, 4, 9, 8, seed=i) for i in range(3))
    results = []
    for function in (scaled_dot_product_attention, torch_attention):
        torch.manual_seed(0)
        results.append(function(q, k, v, **options))
    assert torch.equal(*results)


@pytest.mark.parametrize("shape", [(2, 4, 9, 300), (2, 4, 0, 8)])
def test_sizes_and_types_outside_the_kernels_are_torch_to_the_bit(shape: tuple[int, ...]) -> None:
    x = normal(*shape, dtype=torch.float64)
    assert torch.equal(scaled_dot_product_attention(x, x, x), torch_attention(x, x, x))


def test_torch_signature_does_not_copy_leading_dimensions() -> None:
    with backend("cpu"):
        x = normal(3, 2, 9, 4, 8).transpose(-2, -3)
        o = scaled_dot_product_attention(x, x, x, is_causal=True)
    assert o.shape == x.shape
    assert o.transpose(-2, -3).is_contiguous()  # the layout of the inputs, ready to join the heads without a copy


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": normal(4, 9, 8)}, ValueError, "q must be .batch, heads, positions, head size"),
        ({"k": normal(2, 2, 9, 4)}, ValueError, "k must share q's batch and head size"),
        ({"v": normal(2, 2, 8, 8)}, ValueError, "v must share k's batch, heads and positions"),
        ({"k": normal(2, 3, 9, 8), "v": normal(2, 3, 9, 8)}, ValueError, "multiple of k's; got 4 and 3"),
        ({"k": normal(2, 2, 9, 8, dtype=torch.bfloat16)}, TypeError, "k must match q, torch.float32 on cpu"),
        ({"v": normal(2, 2, 9, 8).to("meta")}, TypeError, "v must match q, torch.float32 on cpu"),
        ({"q": torch.ones(2, 4, 9, 8, dtype=torch.int64)}, TypeError, "q must be float32, bfloat16, float16"),
        (
            {"q": normal(2, 4, 9, 257), "k": normal(2, 2, 9, 257)},
            ValueError,
            "head size of q must be in 1..256; got 257",
        ),
        ({"v": normal(2, 2, 9, 0)}, ValueError, "head size of v must be in 1..256; got 0"),
        ({"scale": float("nan")}, ValueError, "scale must be finite; got nan"),
        ({"lengths": torch.ones(2)}, TypeError, "lengths must be integers; got torch.float32"),
        ({"lengths": torch.ones(3, dtype=torch.int64)}, ValueError, "lengths must be .batch,. = .2,.; got shape .3,."),
        ({"query_lengths": torch.ones(2, dtype=torch.bool)}, TypeError, "query_lengths must be integers"),
    ],
)
def test_wrong_arguments_raise_one_clear_message_before_any_launch(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr(module, "Attention", None)  # reaching it would raise AttributeError
    arguments = {"q": normal(2, 4, 9, 8), "k": normal(2, 2, 9, 8), "v": normal(2, 2, 9, 8)} | change
    with pytest.raises(error, match=message):
        attention(**arguments)


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_dynamics_equal_the_dense_definitions(name: str) -> None:
    made = case((2, 4, 2, 15, 15, 8, 6), lengths=[15, 6])
    options = {key: made.options[key] for key in ("causal", "scale", "lengths", "query_lengths")}
    exact = made.double().results(reference)
    with backend(name):
        found = attention_dynamics(made.q, made.k, made.v, made.u, dense=True, **options)
    named = found._asdict() | found.forward._asdict() | found.rows._asdict() | found.columns._asdict()
    for key, wanted in exact.items():
        assert_close(named[key], wanted, 2e-6, key)
    assert found.dense is not None
    assert_close(found.dense.weight.sum(-2), exact["responsibility"], 2e-6, "Σ_i α")
    assert_close((found.dense.weight * found.dense.compatibility).sum(-1), exact["expected"], 2e-6, "E")
    assert_close(found.dense.score_gradient, -found.dense.weight * found.dense.advantage, 1e-6, "∂L/∂s")
    assert attention_dynamics(made.q, made.k, made.v, made.u, **options).dense is None


def test_dynamics_refuse_an_upstream_gradient_of_another_shape() -> None:
    made = case()
    with pytest.raises(ValueError, match=r"u must have the output's shape"):
        attention_dynamics(made.q, made.k, made.v, made.u[..., :-1])


class Layer(nn.Module):
    """Self-attention with as many heads as `width` / 4; keeps its last q, k, v and output."""

    def __init__(self, width: int, calls: int = 1) -> None:
        super().__init__()
        self.project, self.calls = nn.Linear(width, 3 * width), calls
        self.seen: list[tuple[Tensor, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            q, k, v = self.project(x).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
            o = attention(q, k, v)
            o.retain_grad()
            self.seen.append((q, k, v, o))
            x = x + o.transpose(1, 2).flatten(2)
        return x


def test_a_record_holds_every_layers_statistics_of_the_ordinary_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Layer(8), nn.Sequential(Layer(8, calls=2)))
    with record_dynamics(model) as record:
        loss = model(torch.randn(2, 11, 8)).square().sum()
    assert len(record) == 0
    loss.backward()
    assert record.modules() == ["0", "1.0"]
    assert [(layer.module, layer.call) for layer in record] == [("0", 0), ("1.0", 0), ("1.0", 1)]
    seen = [*model[0].seen, *model[1][0].seen]
    for layer, (q, k, v, o) in zip(record, seen, strict=True):
        assert o.grad is not None
        wanted = attention_dynamics(q, k, v, o.grad)
        for found, exact in zip((*layer.rows, *layer.columns), (*wanted.rows, *wanted.columns), strict=True):
            assert_close(found, exact, 1e-6)
        assert_close(layer.entropy, wanted.forward.entropy, 1e-6)
        assert_close(layer.max_weight, wanted.forward.max_weight, 1e-6)
        assert torch.equal(layer.argmax, wanted.forward.argmax)


def test_recording_does_not_change_the_gradients() -> None:
    torch.manual_seed(0)
    model, x = Layer(8), torch.randn(2, 11, 8)
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with record_dynamics(model):
        model(x).square().sum().backward()
    for parameter, wanted in zip(model.parameters(), plain, strict=True):
        assert parameter.grad is not None
        assert_close(parameter.grad, wanted, 1e-6)


def test_a_cleared_record_counts_calls_anew_and_hooks_leave_with_the_block() -> None:
    model = Layer(8)
    with record_dynamics(model) as record:
        for _ in range(2):
            model(torch.ones(1, 3, 8)).sum().backward()
            assert [layer.call for layer in record[""]] == [0]
            record.clear()
    model(torch.ones(1, 3, 8)).sum().backward()
    assert len(record) == 0
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_record_survives_an_exception_inside_the_model() -> None:
    model = nn.Sequential(Layer(8))
    with record_dynamics(model) as record:
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3, 7))
        model(torch.ones(1, 3, 8)).sum().backward()
        assert record.modules() == ["0"]


def test_what_cannot_be_recorded_raises() -> None:
    q = normal(2, 2, 5, 4)
    with record_dynamics(nn.Identity()) as record:
        with pytest.raises(RuntimeError, match="nested"), record_dynamics(nn.Identity()):
            pass
        with pytest.raises(RuntimeError, match=r"torch\.func"):
            torch.func.grad(lambda x: attention(x, q, q).sum())(q)
        with pytest.raises(RuntimeError, match="mask"):
            scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(5, 5, dtype=torch.bool))
        with pytest.raises(KeyError, match=r"no attention call recorded inside module 'blocks\.0\.attn'"):
            record["blocks.0.attn"]
