"""Every way into autograd gives the same gradients, or raises."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, jvp, vmap

from bayesattn_fast.backends import backend
from bayesattn_fast.ops.attention import attention
from tests.closeness import assert_close

# Compiling warns about its own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
Three = tuple[Tensor, Tensor, Tensor]


def inputs(*lead: int, dtype: torch.dtype = torch.float32, length: int = 17, width: int = 8) -> Three:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*lead, h, length, width, generator=generator).to(dtype) for h in (4, 2, 2))
    return q, k, v


def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    o, statistics = attention(q, k, v, return_stats=True)
    return o.sin().sum() + statistics.lse.cos().sum()


def eager(q: Tensor, k: Tensor, v: Tensor, f: Callable[..., Tensor] = loss) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(f(*leaves), leaves)


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    for x, exact in zip(found, wanted, strict=True):
        assert_close(x, exact, tolerance)


@pytest.mark.parametrize("lengths", [None, [3, 0]])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_equal_finite_differences(causal: bool, lengths: list[int] | None) -> None:
    leaves = [x.requires_grad_() for x in inputs(2, dtype=torch.float64, length=5, width=3)]
    live = None if lengths is None else torch.tensor(lengths)
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, causal=causal, lengths=live), leaves)


def test_gradients_through_lse_equal_finite_differences() -> None:
    leaves = [x.requires_grad_() for x in inputs(1, dtype=torch.float64, length=5, width=3)]

    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        o, statistics = attention(q, k, v, return_stats=True)
        return o, statistics.lse

    assert torch.autograd.gradcheck(both, leaves)
    assert torch.autograd.gradgradcheck(both, leaves)


def test_native_gradients_equal_those_of_float64() -> None:
    q, k, v = inputs(3)
    with backend("cpu"):
        found = eager(q, k, v)
    assert_same(found, eager(q.double(), k.double(), v.double()), 2e-6)


def test_second_order_gradients_equal_those_of_float64() -> None:
    def penalty(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sum(g.square().sum() for g in torch.autograd.grad(loss(q, k, v), (q, k, v), create_graph=True))  # type: ignore[return-value]

    arguments = inputs(2)
    assert_same(eager(*arguments, penalty), eager(*(x.double() for x in arguments), penalty), 4e-6)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_any_subset_of_inputs_may_require_gradients(wanted: tuple[int, ...]) -> None:
    arguments = [x.requires_grad_(i in wanted) for i, x in enumerate(inputs(2))]
    found = torch.autograd.grad(loss(*arguments), [arguments[i] for i in wanted])
    everything = eager(*arguments)
    assert_same(found, [everything[i] for i in wanted], 0)


def test_an_unused_output_costs_no_gradient_and_statistics_carry_none() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(2))
    _, statistics = attention(q, k, v, return_stats=True)
    assert statistics.lse.requires_grad
    assert not any(x.requires_grad for x in (statistics.entropy, statistics.max_weight, statistics.argmax))
    (only_lse,) = torch.autograd.grad(statistics.lse.sum(), v, allow_unused=True)
    assert only_lse is None or float(only_lse.abs().max()) == 0.0


def test_expanded_upstream_gradient_of_a_sum_is_exact() -> None:
    found = eager(*inputs(2), lambda q, k, v: attention(q, k, v).sum())
    exact = eager(*(x.double() for x in inputs(2)), lambda q, k, v: attention(q, k, v).sum())
    assert_close(found[2], exact[2], 1e-6)


def test_torch_func_grad_equals_eager() -> None:
    arguments = inputs(2)
    assert_same(grad(loss, (0, 1, 2))(*arguments), eager(*arguments), 0)


def test_vmap_over_seeds_equals_a_loop() -> None:
    q, k, v = inputs(3, 2)
    assert_same(vmap(attention)(q, k, v), [attention(*x) for x in zip(q, k, v, strict=True)], 0)
    moved = vmap(attention, in_dims=(2, None, 1))(q.movedim(0, 2), k[0], v.movedim(0, 1))
    assert_same(moved, [attention(q[i], k[0], v[i]) for i in range(3)], 0)


def test_vmap_with_lengths_of_each_seed_equals_a_loop() -> None:
    q, k, v = inputs(3, 2)
    lengths = torch.tensor([[0, 4], [17, 3], [1, 9]])
    found = vmap(lambda q, k, v, n: attention(q, k, v, lengths=n))(q, k, v, lengths)
    assert_same(found, [attention(q[i], k[i], v[i], lengths=lengths[i]) for i in range(3)], 0)


def test_vmap_of_grad_and_grad_of_vmap_equal_a_loop() -> None:
    arguments = inputs(3, 2)
    wanted = [torch.stack(x) for x in zip(*(eager(*x) for x in zip(*arguments, strict=True)), strict=True)]
    assert_same(vmap(grad(loss, (0, 1, 2)))(*arguments), wanted)
    assert_same(grad(lambda *x: vmap(loss)(*x).sum(), (0, 1, 2))(*arguments), wanted)


def test_hessian_by_reverse_over_reverse_equals_that_of_float64() -> None:
    q, k, v = inputs(1, length=4, width=3)
    second = jacrev(grad(loss))
    assert_close(second(q, k, v), second(q.double(), k.double(), v.double()), 4e-6)


def test_forward_mode_raises_rather_than_giving_zero() -> None:
    q, k, v = inputs(1)
    with pytest.raises(NotImplementedError, match="jvp"):
        jvp(lambda x: attention(x, k, v), (q,), (torch.ones_like(q),))


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_full_compiled_graph_equals_eager(compiler: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=compiler, dynamic=True)
    for length in (17, 9):
        arguments = inputs(2, length=length)
        assert_same(eager(*arguments, compiled), eager(*arguments))


def test_compiled_vmap_equals_eager() -> None:
    torch._dynamo.reset()
    arguments = inputs(3, 2)
    compiled = torch.compile(vmap(attention), fullgraph=True, backend="aot_eager")
    assert_same([compiled(*arguments)], [vmap(attention)(*arguments)])


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled_torch_func_gradients_equal_eager_or_raise(compiler: str, mapped: bool) -> None:
    torch._dynamo.reset()
    arguments = inputs(3, 2) if mapped else inputs(2)
    gradients = grad(loss, (0, 1, 2))
    f = vmap(gradients) if mapped else gradients
    found = _unless_refused(torch.compile(f, backend=compiler), arguments)
    if found is not None:
        assert_same(found, f(*arguments))


def _unless_refused(f: Callable[..., Any], arguments: Three) -> Any:
    """f(*arguments), or None where the compiler says that it cannot take the op."""
    try:
        return f(*arguments)
    except Exception as error:
        if "fake tensor" in str(error) or "autograd.Function" in str(error):
            return None
        raise


SLOW = pytest.mark.slow  # the rest of the grid: half a minute


@pytest.mark.parametrize(
    ("rows_first", "dtype", "statistics"),
    [
        (True, torch.float32, True),
        (False, torch.bfloat16, False),
        pytest.param(False, torch.float32, False, marks=SLOW),
        pytest.param(True, torch.bfloat16, True, marks=SLOW),
        pytest.param(True, torch.float64, False, marks=SLOW),
        pytest.param(False, torch.float64, True, marks=SLOW),
    ],
)
def test_custom_ops_keep_their_promises(rows_first: bool, dtype: torch.dtype, statistics: bool) -> None:
    def layout(x: Tensor) -> Tensor:
        return (x.transpose(1, 2).contiguous().transpose(1, 2) if rows_first else x).requires_grad_()

    q, k, v = (layout(x) for x in inputs(2, dtype=dtype, length=9))
    live = torch.tensor([3, 9], dtype=torch.int32)
    options = (live, None, True, 0.3, statistics, False)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.bayesattn.attention_forward.default, (q, k, v, *options), test_utils=checks)
    o, lse, *_ = (x.detach() for x in torch.ops.bayesattn.attention_forward(q, k, v, *options))
    u = layout(torch.randn_like(o))
    arguments = (q, k, v, o, lse, u, None, *options)
    torch.library.opcheck(torch.ops.bayesattn.attention_backward.default, arguments, test_utils=checks)


def test_a_module_trains_the_same_seed_by_seed_and_all_at_once() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x).view(*x.shape[:-1], 3, 2, 4).permute(2, 0, 3, 1, 4)
            return attention(q, k, v).transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    layers, x = [Layer() for _ in range(3)], torch.randn(2, 9, 8)
    stacked, _ = torch.func.stack_module_state(layers)  # type: ignore[arg-type]
    together = vmap(grad(lambda p: functional_call(layers[0], p, (x,)).square().sum()))(stacked)
    for i, layer in enumerate(layers):
        layer(x).square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None
            assert_close(together[name][i], parameter.grad, 2e-6, name)
