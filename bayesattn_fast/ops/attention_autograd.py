"""How attention's kernels enter autograd, torch.compile and torch.func.

Two custom ops launch the kernels of the back end in force, two autograd Functions join them. The Functions, with
`setup_context` and a `vmap` rule, are what torch.func composes with; the ops are opaque to the compiler. The ops also
carry the same formulas themselves, so that a tracer that sees through the Functions cannot take an op's gradient for
zero.
Second derivatives differentiate the closed-form gradient of the reference, densely. There is no `jvp`: forward-mode
differentiation raises.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesattn_fast import backends
from bayesattn_fast.kernels.attention import reference
from bayesattn_fast.kernels.attention.layout import like_heads
from bayesattn_fast.kernels.attention.results import (
    AttentionBackward,
    AttentionForward,
    ColumnStatistics,
    RowStatistics,
)

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Ten = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
# Takes the statistics of one backward pass, and entropy, max_weight and argmax of the forward pass before it.
Receiver = Callable[[RowStatistics, ColumnStatistics, tuple[Tensor, ...]], None]


def _implementation(q: Tensor) -> tuple[Callable[..., AttentionForward], Callable[..., AttentionBackward]]:
    name = backends.resolve("attention", q.device)
    if name == "reference" or q.dtype == torch.float64:
        return reference.forward, reference.backward
    if name == "cpu":
        from bayesattn_fast.kernels.attention import native

        return native.forward, native.backward
    from bayesattn_fast.kernels.attention import backward, forward  # type: ignore[attr-defined, unused-ignore]

    return forward.forward, backward.backward


def _wide(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _laid_out(x: Tensor, like: Tensor) -> Tensor:
    """x in the layout that the fakes promise; a copy only where the implementation chose another one."""
    wanted = like_heads(like, x.shape[-1])
    return x if x.stride() == wanted.stride() else wanted.copy_(x)


@torch.library.custom_op("bayesattn::attention_forward", mutates_args=())
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    causal: bool,
    scale: float,
    statistics: bool,
    tf32: bool,
) -> Five:
    """o, lse, entropy, max_weight, argmax; the last three empty without statistics. kernels/attention/reference.py."""
    forward, _ = _implementation(q)
    result = forward(
        q,
        k,
        v,
        causal=causal,
        scale=scale,
        lengths=lengths,
        query_lengths=query_lengths,
        statistics=statistics,
        tf32=tf32,
    )
    entropy, max_weight, argmax = (q.new_empty(0) if x is None else x.contiguous() for x in result[2:])
    return _laid_out(result.o, q), result.lse.contiguous(), entropy, max_weight, argmax


@attention_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    causal: bool,
    scale: float,
    statistics: bool,
    tf32: bool,
) -> Five:
    rows, wide = q.shape[:-1], _wide(q)
    o, lse = like_heads(q, v.shape[-1]), q.new_empty(rows, dtype=wide)
    if not statistics:
        return o, lse, q.new_empty(0), q.new_empty(0), q.new_empty(0)
    return o, lse, torch.empty_like(lse), torch.empty_like(lse), q.new_empty(rows, dtype=torch.int32)


@torch.library.custom_op("bayesattn::attention_backward", mutates_args=())
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    u: Tensor,
    dlse: Tensor | None,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    causal: bool,
    scale: float,
    statistics: bool,
    tf32: bool,
) -> Ten:
    """dq, dk, dv, then three row and four column statistics, empty unless asked for. kernels/attention/reference.py."""
    _, backward = _implementation(q)
    result = backward(
        q,
        k,
        v,
        o,
        lse,
        u,
        dlse=dlse,
        causal=causal,
        scale=scale,
        lengths=lengths,
        query_lengths=query_lengths,
        statistics=statistics,
        tf32=tf32,
    )
    gradients = (_laid_out(x, like) for x, like in zip(result[:3], (q, k, v), strict=True))
    if result.rows is None or result.columns is None:
        return (*gradients, *(q.new_empty(0) for _ in range(7)))  # type: ignore[return-value]
    return (*gradients, *(x.contiguous() for x in (*result.rows, *result.columns)))  # type: ignore[return-value]


@attention_backward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    u: Tensor,
    dlse: Tensor | None,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    causal: bool,
    scale: float,
    statistics: bool,
    tf32: bool,
) -> Ten:
    gradients = (like_heads(x, x.shape[-1]) for x in (q, k, v))
    if not statistics:
        return (*gradients, *(q.new_empty(0) for _ in range(7)))  # type: ignore[return-value]
    keys, wide = (*q.shape[:2], k.shape[2]), _wide(q)
    rows = (q.new_empty(q.shape[:-1], dtype=wide) for _ in range(3))
    return (*gradients, *rows, *(q.new_empty(keys, dtype=wide) for _ in range(4)))  # type: ignore[return-value]


def _fold(tensors: tuple[Tensor | None, ...], dims: tuple[int | None, ...], size: int) -> list[Tensor | None]:
    """The mapped dimension of each tensor joined with its first, the batch."""
    folded: list[Tensor | None] = []
    for x, dim in zip(tensors, dims, strict=True):
        if x is not None:
            x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            x = x.flatten(0, 1)
        folded.append(x)
    return folded


def _unfold(outputs: tuple[Tensor, ...], size: int, batch: int) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """Undoes `_fold`; the empty stand-ins for absent statistics are not mapped."""
    mapped = tuple(x.unflatten(0, (size, batch)) if x.dim() > 1 else x for x in outputs)
    return mapped, tuple(0 if x.dim() > 1 else None for x in outputs)


def _batch(x: Tensor, dim: int | None) -> int:
    return x.shape[0] if dim is None or dim > 0 else x.shape[1]


class Attention(torch.autograd.Function):
    """(q, k, v, lengths, query_lengths, causal, scale, statistics, tf32, receiver) -> as attention_forward.

    o and lse are differentiable, the statistics are not. Where `receiver` is given, which takes statistics=True, the
    backward pass also works out its own statistics and hands all over.
    """

    @staticmethod
    def forward(q, k, v, lengths, query_lengths, causal, scale, statistics, tf32, receiver):  # type: ignore[no-untyped-def]
        return attention_forward(q, k, v, lengths, query_lengths, causal, scale, statistics, tf32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
        q, k, v, lengths, query_lengths, ctx.causal, ctx.scale, _, ctx.tf32, ctx.receiver = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, output[0], output[1], lengths, query_lengths)
        ctx.routing = output[2:] if ctx.receiver is not None else ()

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, dlse: Tensor | None, *_: Any) -> tuple[Any, ...]:
        q, k, v, o, lse, lengths, query_lengths = ctx.saved_tensors
        if u is None and dlse is None:
            return (None,) * 10
        u = torch.zeros_like(o) if u is None else u
        record = ctx.receiver is not None
        dq, dk, dv, *statistics = AttentionGradient.apply(
            q, k, v, o, lse, u, dlse, lengths, query_lengths, ctx.causal, ctx.scale, record, ctx.tf32
        )
        if record:
            ctx.receiver(RowStatistics(*statistics[:3]), ColumnStatistics(*statistics[3:]), ctx.routing)
        return dq, dk, dv, *(None,) * 7

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        tensors = _fold(args[:5], in_dims[:5], info.batch_size)
        outputs = Attention.apply(*tensors, *args[5:])
        return _unfold(outputs, info.batch_size, _batch(args[0], in_dims[0]))


class AttentionGradient(torch.autograd.Function):
    """(q, k, v, o, lse, u, dlse, lengths, query_lengths, causal, scale, statistics, tf32) -> as attention_backward.

    Differentiable in q, k, v, u and dlse; o and lse are functions of q, k, v and carry no gradient of their own.
    """

    @staticmethod
    def forward(q, k, v, o, lse, u, dlse, lengths, query_lengths, causal, scale, statistics, tf32):  # type: ignore[no-untyped-def]
        return attention_backward(q, k, v, o, lse, u, dlse, lengths, query_lengths, causal, scale, statistics, tf32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Ten) -> None:
        q, k, v, _, _, u, dlse, lengths, query_lengths, ctx.causal, ctx.scale, _, _ = inputs
        ctx.mark_non_differentiable(*output[3:])
        ctx.save_for_backward(q, k, v, u, dlse, lengths, query_lengths)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, k, v, u, dlse, lengths, query_lengths = ctx.saved_tensors
        gq, gk, gv, gu, glse = _second_order(
            (q, k, v, u, dlse), grads[:3], ctx.causal, ctx.scale, lengths, query_lengths
        )
        return gq, gk, gv, None, None, gu, glse, *(None,) * 6

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        tensors = _fold(args[:9], in_dims[:9], info.batch_size)
        outputs = AttentionGradient.apply(*tensors, *args[9:])
        return _unfold(outputs, info.batch_size, _batch(args[0], in_dims[0]))


def _second_order(
    inputs: tuple[Tensor | None, ...],
    grads: tuple[Tensor, ...],
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, u, dlse from those of dq, dk, dv, through the reference's closed form."""
    given = [x for x in inputs if x is not None]

    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        q, k, v, u, *rest = tensors
        return reference.backward(
            q,
            k,
            v,
            u,  # o and lse are not read
            u,
            u,
            dlse=rest[0] if rest else None,
            causal=causal,
            scale=scale,
            lengths=lengths,
            query_lengths=query_lengths,
            statistics=False,
        )[:3]

    pull_back = torch.func.vjp(gradient, *given)[1]
    found = pull_back(tuple(g.to(x.dtype) for g, x in zip(grads, inputs[:3], strict=True)))  # type: ignore[union-attr]
    return (*found, None) if len(found) < 5 else found


def _op_setup(ctx: Any, inputs: tuple[Any, ...], output: Five) -> None:
    q, k, v, lengths, query_lengths, ctx.causal, ctx.scale, _, ctx.tf32 = inputs
    ctx.receiver = None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, output[0], output[1], lengths, query_lengths)


def _op_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    return Attention.backward(ctx, grads[0], grads[1])[:9]


def _gradient_op_setup(ctx: Any, inputs: tuple[Any, ...], output: Ten) -> None:
    q, k, v, _, _, u, dlse, lengths, query_lengths, ctx.causal, ctx.scale, _, _ = inputs
    ctx.save_for_backward(q, k, v, u, dlse, lengths, query_lengths)


attention_forward.register_autograd(_op_backward, setup_context=_op_setup)
attention_backward.register_autograd(AttentionGradient.backward, setup_context=_gradient_op_setup)
