"""The selective scan under autograd, func transforms, vmap and torch.compile: equal to eager, or refused aloud."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from bayesattn_fast.ops import selective_scan as ops
from bayesattn_fast.ops.selective_scan import selective_scan_fn
from tests.closeness import assert_close
from tests.ops.scan_cases import NAMES, Case, draw_tensors

CASE = Case(channels=18, length=70, states=3)
ALL = tuple(range(8))


def inputs(case: Case = CASE, seeds: int = 0) -> tuple[Tensor, ...]:
    """The eight tensors in order, with a leading axis of `seeds` different draws if asked."""
    if not seeds:
        return tuple(t.detach() for t in draw_tensors(case).values())
    draws = [draw_tensors(Case(channels=18, length=70, states=3, seed=s)) for s in range(seeds)]
    return tuple(torch.stack([d[name].detach() for d in draws]) for name in draws[0])


def loss(*tensors: Tensor) -> Tensor:
    out, last = selective_scan_fn(*tensors, delta_softplus=True, return_last_state=True)
    return out.sin().sum() + last.cos().sum()


def eager_gradients(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in tensors]
    return torch.autograd.grad(loss(*leaves), leaves)


def with_seed_axis(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [t[None, :, None] if i in (3, 4) else t[None] for i, t in enumerate(tensors)]


def permuted(tensor: Tensor) -> Tensor:
    """The same values, dense, with the axes reversed in memory."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


@pytest.mark.parametrize("position", [None, *range(8)])
def test_forward_op_passes_opcheck_in_every_layout(position: int | None) -> None:
    given = with_seed_axis(inputs(Case(channels=5, length=9)))
    given = [permuted(t) if i == position else t for i, t in enumerate(given)]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(ops.scan_forward, (*given, True, True), test_utils=tests)


@pytest.mark.parametrize("options", [(), ("D", "z", "delta_bias")])
@pytest.mark.parametrize("layout", [permuted, torch.clone])
def test_backward_op_passes_opcheck(options: tuple[str, ...], layout: Callable[[Tensor], Tensor]) -> None:
    case = Case(channels=5, length=70, options=options, C="fixed")
    tensors = {name: t.detach() for name, t in draw_tensors(case).items()}
    tensors["B"] = tensors["B"][:, None]
    given = [None if name not in tensors else layout(tensors[name][None]) for name in NAMES]
    out, last, states = ops.scan_forward(*given, True, True)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        ops.scan_backward,
        (torch.randn_like(out), torch.randn_like(last), *given, True, states),
        test_utils=tests,
    )


def test_bare_launchers_refuse_to_be_differentiated() -> None:
    given = with_seed_axis(tuple(t.requires_grad_() for t in inputs()))
    out = ops.scan_forward(*given, True, False)[0]
    with pytest.raises(RuntimeError, match="call selective_scan_fn"):
        out.sum().backward()


@pytest.mark.parametrize(
    ("B", "C", "options"),
    [("varying", "varying", ("D", "z", "delta_bias")), ("fixed", "grouped", ()), ("grouped", "fixed", ("z",))],
)
def test_first_and_second_derivatives_pass_gradcheck_in_float64(B: str, C: str, options: tuple[str, ...]) -> None:
    case = Case(batch=2, channels=2, states=2, length=4, groups=2, B=B, C=C, options=options, dtype=torch.float64)
    tensors = {name: t.detach().double().requires_grad_() for name, t in draw_tensors(case).items()}

    def call(*given: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(tensors, given, strict=True))
        return selective_scan_fn(**named, delta_softplus=True, return_last_state=True)  # type: ignore[return-value]

    assert torch.autograd.gradcheck(call, tuple(tensors.values()))
    assert torch.autograd.gradgradcheck(call, tuple(tensors.values()))


def test_second_derivative_in_float32_equals_float64() -> None:
    def curvature(tensors: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in tensors]
        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))  # type: ignore[arg-type]

    case = Case(channels=5, length=20)
    exact = curvature(tuple(t.double() for t in inputs(case)))
    for ours, wanted in zip(curvature(inputs(case)), exact, strict=True):
        assert_close(ours, wanted, 2e-5)


def test_func_grad_equals_autograd() -> None:
    tensors = inputs()
    for ours, exact in zip(grad(loss, argnums=ALL)(*tensors), eager_gradients(tensors), strict=True):
        assert_close(ours, exact, 1e-6)


def test_vmap_of_grad_equals_one_gradient_after_another() -> None:
    stacked = inputs(seeds=3)
    ours = vmap(grad(loss, argnums=ALL))(*stacked)
    for seed in range(3):
        exact = eager_gradients(tuple(t[seed] for t in stacked))
        for a, b in zip(ours, exact, strict=True):
            assert_close(a[seed], b, 1e-6)


def test_vmap_over_some_inputs_shares_the_others() -> None:
    stacked = inputs(seeds=2)
    dims = (0, None, None, 0, None, 0, None, None)
    mixed = tuple(t if d == 0 else t[0] for t, d in zip(stacked, dims, strict=True))
    ours = vmap(grad(loss, argnums=ALL), in_dims=dims)(*mixed)
    for seed in range(2):
        exact = eager_gradients(tuple(t[seed] if d == 0 else t for t, d in zip(mixed, dims, strict=True)))
        for a, b in zip(ours, exact, strict=True):
            assert_close(a[seed], b, 1e-6)


def test_nested_vmap_and_another_mapped_axis() -> None:
    u, *rest = inputs(seeds=2)
    wide = torch.stack([u, 2 * u, 3 * u], -1)
    call = vmap(vmap(loss, in_dims=(-1, *[None] * 7)), in_dims=0)
    ours = call(wide, *rest)
    for seed in range(2):
        for k in range(3):
            assert_close(ours[seed, k], loss((k + 1) * u[seed], *(t[seed] for t in rest)), 1e-5)


def test_hessian_vector_product_under_vmap_equals_alone() -> None:
    stacked = inputs(seeds=2)

    def squared_gradient(u: Tensor, *rest: Tensor) -> Tensor:
        return grad(loss)(u, *rest).square().sum()

    ours = vmap(grad(squared_gradient))(*stacked)
    for seed in range(2):
        assert_close(ours[seed], grad(squared_gradient)(*(t[seed] for t in stacked)), 1e-5)


def test_forward_mode_is_refused_not_silently_zero() -> None:
    tensors = inputs()
    with pytest.raises(NotImplementedError, match="jvp"):
        jvp(loss, tensors, tensors)


def test_compiled_fullgraph_equals_eager_for_any_length() -> None:
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (70, 33):
        tensors = inputs(Case(channels=18, length=length, states=3))
        leaves = [t.clone().requires_grad_() for t in tensors]
        value = compiled(*leaves)
        assert_close(value, loss(*tensors), 1e-6)
        for ours, exact in zip(torch.autograd.grad(value, leaves), eager_gradients(tensors), strict=True):
            assert_close(ours, exact, 1e-6)


def test_compiled_func_grad_equals_eager() -> None:
    torch.compiler.reset()
    tensors = inputs()
    ours = torch.compile(grad(loss, argnums=ALL), backend="aot_eager")(*tensors)
    for a, b in zip(ours, eager_gradients(tensors), strict=True):
        assert_close(a, b, 1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_vmap_of_grad_equals_eager_or_is_refused() -> None:
    torch.compiler.reset()
    stacked = inputs(seeds=2)
    try:
        ours = torch.compile(vmap(grad(loss, argnums=ALL)), backend="aot_eager")(*stacked)
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException):
        return
    for a, b in zip(ours, vmap(grad(loss, argnums=ALL))(*stacked), strict=True):
        assert_close(a, b, 1e-6)


def test_unused_outputs_cost_no_gradient() -> None:
    leaves = [t.clone().requires_grad_() for t in inputs()]
    out, last = selective_scan_fn(*leaves, delta_softplus=True, return_last_state=True)
    gated = torch.autograd.grad(last.sum(), leaves, allow_unused=True, retain_graph=True)
    assert not gated[6].any()  # z does not reach the state
    assert torch.autograd.grad(out.sum(), leaves)[0].any()
