"""Causal depthwise convolution of width 2 to 4, with an optional SiLU: causal-conv1d's functions on any device.

out_t = act(bias + Σ_k weight_k x_{t−W+1+k}); the definition is kernels/causal_conv1d/reference.py.
"""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..backends import resolve
from ..kernels.causal_conv1d import reference
from ._seed_axis import absent, expect, fold, in_layout_of, unfold

Maybe = Tensor | None
WIDTHS = (2, 3, 4)


def _implementation(x: Tensor, forward: bool) -> ModuleType:
    """The module that has this pass for these tensors; float64 is the reference's alone."""
    served = "reference"
    if x.dtype != torch.float64 and x.device.type in ("cpu", "cuda"):
        served = resolve("causal_conv1d", x.device)
    if served == "cpu":
        from ..kernels.causal_conv1d import native

        return native
    if served == "triton":
        return importlib.import_module(f"bayesattn_fast.kernels.causal_conv1d.{'forward' if forward else 'backward'}")
    return reference


@custom_op("bayesattn::causal_conv1d_forward", mutates_args=())
def conv_forward(x: Tensor, weight: Tensor, bias: Maybe, seq_idx: Maybe, initial_states: Maybe, silu: bool) -> Tensor:
    """out of tensors with a seed axis; the contract is kernels/causal_conv1d/reference.py."""
    if x.numel() == 0:
        return torch.empty_like(x)
    out = _implementation(x, True).causal_conv1d_forward(x, weight, bias, seq_idx, initial_states, silu)
    return in_layout_of(x, out)


@conv_forward.register_fake
def _(x, weight, bias, seq_idx, initial_states, silu):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@custom_op("bayesattn::causal_conv1d_backward", mutates_args=())
def conv_backward(
    dout: Tensor, x: Tensor, weight: Tensor, bias: Maybe, seq_idx: Maybe, initial_states: Maybe, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dx, dweight, dbias, dinitial_states); an empty tensor where the input was absent."""
    if x.numel() == 0:
        shapes = _empty_backward(x, weight, bias, initial_states)
        return tuple(t.zero_() for t in shapes)  # type: ignore[return-value]
    backward = _implementation(x, False).causal_conv1d_backward
    gradients = backward(dout, x, weight, bias, seq_idx, initial_states, silu)
    return tuple(  # type: ignore[return-value]
        absent(weight) if g is None else in_layout_of(None if i else x, g) for i, g in enumerate(gradients)
    )


def _empty_backward(x: Tensor, weight: Tensor, bias: Maybe, initial_states: Maybe) -> tuple[Tensor, ...]:
    rest = (t if t is None else t.new_empty(t.shape) for t in (weight, bias, initial_states))
    return (torch.empty_like(x), *(absent(weight) if t is None else t for t in rest))


@conv_backward.register_fake
def _(dout, x, weight, bias, seq_idx, initial_states, silu):  # type: ignore[no-untyped-def]
    return _empty_backward(x, weight, bias, initial_states)


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "bayesattn::causal_conv1d_* are the launchers of bayesattn_fast.causal_conv1d_fn and carry no gradient of "
        "their own; call causal_conv1d_fn"
    )


conv_forward.register_autograd(_refuse)
conv_backward.register_autograd(_refuse)


class _Conv(torch.autograd.Function):
    """Differentiable convolution over tensors with a seed axis."""

    @staticmethod
    def forward(x, weight, bias, seq_idx, initial, silu):  # type: ignore[no-untyped-def]
        return conv_forward(x, weight, bias, seq_idx, initial, silu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.silu = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        x, weight, bias, seq_idx, initial = ctx.saved_tensors
        dx, dweight, dbias, dinitial = _ConvBackward.apply(dout, x, weight, bias, seq_idx, initial, ctx.silu)
        return dx, dweight, None if bias is None else dbias, None, None if initial is None else dinitial, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        out = _Conv.apply(*fold(info.batch_size, in_dims[:5], args[:5]), args[5])
        outputs, dims = unfold(info.batch_size, (out,))
        return outputs[0], dims[0]


class _ConvBackward(torch.autograd.Function):
    """The first derivative, itself differentiable: its own backward is the reference's formula."""

    @staticmethod
    def forward(dout, x, weight, bias, seq_idx, initial, silu):  # type: ignore[no-untyped-def]
        return conv_backward(dout, x, weight, bias, seq_idx, initial, silu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.silu = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        dout, x, weight, bias, seq_idx, initial = ctx.saved_tensors
        given = {"dout": dout, "x": x, "weight": weight, "bias": bias, "initial": initial}
        names = [name for name, tensor in given.items() if tensor is not None]

        def first_derivative(*tensors: Tensor) -> tuple[Tensor, ...]:
            t = {**given, **dict(zip(names, tensors, strict=True))}
            gradients = reference.causal_conv1d_backward(
                t["dout"], t["x"], t["weight"], t["bias"], seq_idx, t["initial"], ctx.silu
            )
            return tuple(g for g in gradients if g is not None)

        _, pullback, *_ = torch.func.vjp(first_derivative, *(given[name] for name in names))
        needed = tuple(u for u, t in zip(upstream, (x, weight, bias, initial), strict=True) if t is not None)
        found = dict(zip(names, pullback(needed), strict=True))
        return found["dout"], found["x"], found["weight"], found.get("bias"), None, found.get("initial"), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        outputs = _ConvBackward.apply(*fold(info.batch_size, in_dims[:6], args[:6]), args[6])
        return unfold(info.batch_size, outputs)


def _check_float(name: str, tensor: Maybe) -> None:
    if tensor is not None and not tensor.is_floating_point():
        raise TypeError(f"{name} must be a real float tensor; got {tensor.dtype}")


def _check(x: Tensor, weight: Tensor, bias: Maybe, seq_idx: Maybe, initial_states: Maybe) -> None:
    """Shapes, dtypes and devices of tensors with a seed axis."""
    named = {"x": x, "weight": weight, "bias": bias, "initial_states": initial_states}
    for name, tensor in named.items():
        _check_float(name, tensor)
    for name, tensor in {**named, "seq_idx": seq_idx}.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x on {x.device}: all must be on one device")
    if x.dim() != 4:
        raise ValueError(f"x must be (batch, channels, length); got {tuple(x.shape[1:])}")
    seeds, batch, channels, length = x.shape
    if length < 1 or channels < 1:
        raise ValueError(f"x must have at least one channel and one position; got {tuple(x.shape[1:])}")
    if weight.dim() != 3 or weight.shape[-1] not in WIDTHS:
        raise ValueError(f"weight must be (channels, width) with width 2, 3 or 4; got {tuple(weight.shape[1:])}")
    width = weight.shape[-1]
    expect("weight", weight, (seeds, channels, width), "(D, W)")
    expect("bias", bias, (seeds, channels), "(D,)")
    expect("seq_idx", seq_idx, (seeds, batch, length), "(B, L)")
    expect("initial_states", initial_states, (seeds, batch, channels, width - 1), "(B, D, W − 1)")
    if seq_idx is not None and (seq_idx.is_floating_point() or seq_idx.dtype == torch.bool):
        raise TypeError(f"seq_idx must hold integers; got {seq_idx.dtype}")


def _silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation must be None, 'silu' or 'swish'; got {activation!r}")
    return activation is not None


def causal_conv1d_seeds(
    x: Tensor,
    weight: Tensor,
    bias: Maybe = None,
    seq_idx: Maybe = None,
    initial_states: Maybe = None,
    activation: str | None = None,
) -> Tensor:
    """Convolutions of E seeds at once, each with weights of its own: `causal_conv1d_fn` with a leading axis E.

    x (E, B, D, L); weight (E, D, W); bias (E, D); seq_idx (E, B, L); initial_states (E, B, D, W − 1). An axis of stride
    0 (`expand`) shares a tensor between seeds without copying it. Returns out (E, B, D, L) in x's dtype and layout."""
    silu = _silu(activation)
    _check(x, weight, bias, seq_idx, initial_states)
    exact = any(t is not None and t.dtype == torch.float64 for t in (x, weight, bias, initial_states))
    common = torch.promote_types(x.dtype, torch.float64) if exact else x.dtype
    if initial_states is not None:
        common = torch.promote_types(common, initial_states.dtype)
        initial_states = initial_states.to(common)
    wide = torch.float64 if exact else torch.float32
    weight, bias = weight.to(wide), None if bias is None else bias.to(wide)
    seq_idx = None if seq_idx is None else seq_idx.to(torch.int32)
    return _Conv.apply(x.to(common), weight, bias, seq_idx, initial_states, silu).to(x.dtype)


def _lead(tensor: Maybe) -> Maybe:
    return None if tensor is None else tensor[None]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Maybe = None,
    seq_idx: Maybe = None,
    initial_states: Maybe = None,
    return_final_states: bool = False,
    final_states_out: Maybe = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise convolution with causal-conv1d's signature.

    x (B, D, L), channel-first or channel-last, any strides; weight (D, W), W 2 to 4; bias (D,); activation None, "silu"
    or "swish". seq_idx (B, L) integers: only positions of the same index are mixed, and negative ones give 0.
    initial_states (B, D, W − 1) are the inputs before position 0.
    Returns out (B, D, L) in x's dtype, computed in float32 (float64 for float64); with return_final_states also the
    last W − 1 inputs (B, D, W − 1), written to final_states_out if given.
    Raises ValueError naming the argument whose shape, width or device does not fit, or when seq_idx meets
    return_final_states; TypeError for complex or integer inputs."""
    if seq_idx is not None and return_final_states:
        raise ValueError("return_final_states cannot be combined with seq_idx")
    if final_states_out is not None and not return_final_states:
        raise ValueError("final_states_out was given without return_final_states=True")
    out = causal_conv1d_seeds(x[None], weight[None], _lead(bias), _lead(seq_idx), _lead(initial_states), activation)[0]
    if not return_final_states:
        return out
    past = weight.shape[-1] - 1
    if x.shape[-1] >= past:
        final = x[..., x.shape[-1] - past :].clone()
    else:
        before = x.new_zeros(*x.shape[:2], past) if initial_states is None else initial_states.to(x.dtype)
        final = torch.cat([before, x], -1)[..., x.shape[-1] :]
    if final_states_out is None:
        return out, final
    _check_float("final_states_out", final_states_out)
    expect("final_states_out", final_states_out, tuple(final.shape), "(B, D, W − 1)")
    return out, final_states_out.copy_(final)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Maybe = None,
    activation: str | None = None,
    cache_seqlens: Maybe = None,
    conv_state_indices: Maybe = None,
) -> Tensor:
    """One or more steps of the convolution, for generation: updates `conv_state` in place, as causal-conv1d does.

    x (B, D) or (B, D, L); conv_state (B, D, S), S ≥ W − 1, the most recent inputs; weight (D, W); bias (D,).
    With cache_seqlens (B,), the integer number of steps before this call, conv_state is a circular buffer: step t lies
    at t modulo S. With conv_state_indices (B,), distinct integers, sequence i has row conv_state_indices[i] of a
    conv_state with more rows. Returns out of x's shape and dtype. Step by step equals `causal_conv1d_fn`. Raises as
    `causal_conv1d_fn` does."""
    steps = x.unsqueeze(-1) if x.dim() == 2 else x
    past = weight.shape[-1] - 1
    for name, indices in (("cache_seqlens", cache_seqlens), ("conv_state_indices", conv_state_indices)):
        expect(name, indices, tuple(steps.shape[:1]), "(B,)")
    rows = conv_state if conv_state_indices is None else conv_state[conv_state_indices]
    if rows.dim() != 3 or rows.shape[:2] != steps.shape[:2] or rows.shape[-1] < past:
        raise ValueError(
            f"conv_state must be (B, D, S) = {tuple(steps.shape[:2])} with S ≥ {past}; got {tuple(rows.shape)}"
        )
    _check_float("conv_state", conv_state)
    size, length = rows.shape[-1], steps.shape[-1]

    def places(first: int, count: int) -> Tensor:
        """Where steps `first`, `first` + 1, … of this call lie in the circular buffer, (B, D, count)."""
        assert cache_seqlens is not None
        offsets = torch.arange(first, first + count, device=cache_seqlens.device)
        return ((cache_seqlens[:, None].long() + offsets) % size)[:, None].expand(-1, rows.shape[1], -1)

    if cache_seqlens is None:
        initial = rows[..., size - past :].to(steps.dtype, copy=True)
        new = torch.cat([rows, steps.to(rows.dtype)], -1)[..., -size:]
    else:
        initial = rows.gather(2, places(-past, past)).to(steps.dtype)
        kept = min(length, size)  # of more steps than places, the last are kept
        new = rows.scatter(2, places(length - kept, kept), steps[..., length - kept :].to(rows.dtype))
    out = causal_conv1d_fn(steps, weight, bias, initial_states=initial, activation=activation)
    assert isinstance(out, Tensor)
    if conv_state_indices is None:
        conv_state.copy_(new)
    else:
        conv_state[conv_state_indices] = new
    return out.view(x.shape)
