"""One attention head, linear readout and cross-entropy: loss and all analytic gradients in one launch, and a trainer.

    s_ij = scale q_i·k_j,  α_i = softmax(s_i),  o_i = Σ_j α_ij v_j,  p_i = softmax(W_Oᵀ o_i),  L = −mean_i ln p_i(y_i)

The definition, with every closed form, is kernels/single_head/reference.py. Source: "Gradient Dynamics of Attention",
arXiv 2512.22473. Nothing quadratic in the number of positions is kept, but by the reference, which serves float64 and
heads wider than the kernels take.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends import current, resolve
from ..kernels.single_head import reference
from ..kernels.single_head.reference import Dense, HeadStep, Statistics, WeightStep

MATRICES = ("w_q", "w_k", "w_v", "w_out")


class Training(NamedTuple):
    """What `train_single_head` returns; E seeds, R = steps // record_every + 1 records. NaN once a seed diverged."""

    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    """w_q, w_k, w_v, w_out after the last step; of a diverged seed, as they were when it diverged."""
    loss: Tensor
    """(E, steps + 1) float64, nats: the loss before every step, and after the last."""
    diverged: Tensor
    """(E,) bool."""
    recorded: tuple[int, ...]
    """The R steps of the records."""
    entropy: Tensor
    """(E, R): mean predictive entropy on the training data, in nats."""
    accuracy: Tensor
    """(E, R): share of positions whose likeliest class is the target."""
    routing_entropy: Tensor
    """(E, R): mean entropy of α_i, in nats."""
    advantage_variance: Tensor
    """(E, R): mean over positions of Var_α[b] for the position's own loss, without its 1/N."""
    gradient_norms: Tensor
    """(E, R, 4): of w_q, w_k, w_v, w_out."""
    held_out_loss: Tensor
    """(E, R), nats; NaN without held-out data."""
    held_out_entropy: Tensor
    """(E, R), nats."""
    held_out_accuracy: Tensor
    """(E, R)."""


def _implementation(like: Tensor, *sizes: int) -> ModuleType:
    """The kernels that take tensors like this one and heads of these sizes; the reference where none do."""
    if like.dtype != torch.float32 or like.device.type not in ("cpu", "cuda"):
        return reference
    served = resolve("single_head", like.device)
    if served == "cpu":
        from ..kernels.single_head import native

        return native
    if served == "triton":
        from ..kernels.single_head import forward, problem

        if problem.takes(*sizes) or current() == "triton":
            return forward
    return reference


def _expect(name: str, tensor: Tensor, sizes: Sequence[int], letters: str) -> None:
    if tuple(tensor.shape) != tuple(sizes):
        raise ValueError(f"{name} must be {letters} = {tuple(sizes)}; got {tuple(tensor.shape)}")


def _same_kind(named: dict[str, Tensor]) -> None:
    first, like = next(iter(named.items()))
    if like.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{first} must be float32 or float64; got {like.dtype}")
    for name, tensor in named.items():
        if tensor.dtype != like.dtype or tensor.device != like.device:
            found = f"{tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name} must be {like.dtype} on {like.device} as {first} is; got {found}")


def _with_axes(name: str, tensor: Tensor, seeds: bool, last: int) -> Tensor:
    """(N, …), (B, N, …) or, with a seed axis, (E, N, …) or (E, B, N, …), as (E, B, N, …); `last` axes follow N."""
    rank = last + 1 + seeds
    if tensor.dim() not in (rank, rank + 1):
        lead = "E, " if seeds else ""
        raise ValueError(
            f"{name} must be ({lead}N, …) or ({lead}B, N, …) with {last} axes after N; got {tuple(tensor.shape)}"
        )
    if not seeds:
        tensor = tensor[None]
    return tensor if tensor.dim() == last + 3 else tensor[:, None]


def _check_targets(targets: Tensor, seeds: bool, sizes: tuple[int, int, int], classes: int, like: Tensor) -> Tensor:
    hard = not targets.is_floating_point()
    targets = _with_axes("targets", targets, seeds, 0 if hard else 1)
    if targets.device != like.device:
        raise ValueError(f"targets must be on {like.device}; got {targets.device}")
    if not hard:
        _expect("targets", targets, (*sizes, classes), "(E, B, N, C)")
        return targets.to(like.dtype)
    _expect("targets", targets, sizes, "(E, B, N)")
    if targets.dtype == torch.bool:
        raise TypeError("targets must be int64 classes or a floating point weight for each class; got torch.bool")
    low, high = (int(edge) for edge in targets.aminmax())
    if low < 0 or high >= classes:
        raise ValueError(f"targets must lie in [0, {classes}), the classes of w_out; got {low if low < 0 else high}")
    return targets.to(torch.int64)


def _scale(scale: float | None, head: int) -> float:
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale must be finite; got {scale}")
    return head**-0.5 if scale is None else float(scale)


class _Loss(torch.autograd.Function):
    """The loss, whose gradients were computed with it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, step: HeadStep) -> Tensor:
        ctx.save_for_backward(step.dq, step.dk, step.dv, step.dw_out)
        return step.loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        dq, dk, dv, dw_out = ctx.saved_tensors
        wide = upstream[:, None, None, None]
        return wide * dq, wide * dk, wide * dv, upstream[:, None, None] * dw_out, None


def _check_head(
    q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if w_out.dim() not in (2, 3):
        raise ValueError(f"w_out must be (Dv, C) or (E, Dv, C); got {tuple(w_out.shape)}")
    _same_kind({"q": q, "k": k, "v": v, "w_out": w_out})
    seeds = w_out.dim() == 3
    q, k, v = (_with_axes(name, t, seeds, 1) for name, t in (("q", q), ("k", k), ("v", v)))
    w_out = w_out if seeds else w_out[None]
    if q.numel() == 0 or v.numel() == 0 or w_out.numel() == 0:
        raise ValueError(
            f"q, v and w_out must not be empty; got {tuple(q.shape)}, {tuple(v.shape)}, {tuple(w_out.shape)}"
        )
    _expect("k", k, q.shape, "(E, B, N, Dk)")
    _expect("v", v, (*q.shape[:3], v.shape[3]), "(E, B, N, Dv)")
    _expect("w_out", w_out, (q.shape[0], v.shape[3], w_out.shape[2]), "(E, Dv, C)")
    sizes = (q.shape[0], q.shape[1], q.shape[2])
    return q, k, v, w_out, _check_targets(targets, seeds, sizes, w_out.shape[2], q)


def attention_cross_entropy(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_out: Tensor,
    targets: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    statistics: bool = False,
) -> HeadStep:
    """Attention, readout and mean cross-entropy with every gradient, in one launch and memory linear in N.

    q, k (N, Dk), v (N, Dv), w_out (Dv, C), targets (N,) int64 in [0, C) or (N, C) weights of the classes; all but w_out
    may have a batch axis (B, N, …), and all a leading seed axis E, which w_out then has too. float32 or float64.
    scale: 1/√Dk unless given. Returns HeadStep(loss, dq, dk, dv, dw_out, statistics): loss in nats, the mean over B and
    N, () or (E,); gradients of it in the shapes of their tensors; statistics (see `Statistics`) if asked, else None.
    `loss` itself is differentiable once with respect to q, k, v and w_out; the second derivative raises.
    Raises ValueError naming the argument whose shape, dtype or range does not fit."""
    full = _check_head(q, k, v, w_out, targets)
    with torch.no_grad():
        kernels = _implementation(full[0], q.shape[-1], v.shape[-1], w_out.shape[-1])
        step = kernels.attention_cross_entropy(*full, causal, _scale(scale, q.shape[-1]), statistics)
    loss = _Loss.apply(*full[:4], step) if torch.is_grad_enabled() else step.loss
    dw_out, found = step.dw_out, step.statistics
    if w_out.dim() == 2:
        loss, dw_out = loss[0], dw_out[0]
    if found is not None:
        found = Statistics(*(t.reshape(q.shape[:-1]) for t in found))
    return HeadStep(loss, step.dq.view(q.shape), step.dk.view(k.shape), step.dv.view(v.shape), dw_out, found)


def attention_maps(
    q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, *, causal: bool = True, scale: float | None = None
) -> Dense:
    """Responsibilities α, compatibilities b and advantages −(b − E_α[b]), (…, N, N), for pictures: memory N².

    Arguments as for `attention_cross_entropy`. A positive advantage at (i, j) means that routing more of i to j lowers
    the loss; what is masked is 0."""
    full = _check_head(q, k, v, w_out, targets)
    with torch.no_grad():
        maps = reference.dense_maps(*full, causal, _scale(scale, q.shape[-1]))
    return Dense(*(t.reshape(*q.shape[:-1], q.shape[-2]) for t in maps))


def _check_weights(x: Tensor, targets: Tensor, weights: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """x, targets and the weights with all axes, and whether there was a seed axis."""
    named = dict(zip(MATRICES, weights, strict=True))
    _same_kind({"x": x, **named})
    for name, w in named.items():
        if w.dim() not in (2, 3) or w.numel() == 0 or w.dim() != weights[0].dim():
            raise ValueError(
                f"{name} must be a matrix, or one a seed (E, …) as all weights then are; got {tuple(w.shape)}"
            )
    seeds = weights[0].dim() == 3
    w_q, w_k, w_v, w_out = (w if seeds else w[None] for w in weights)
    x = _with_axes("x", x, seeds, 1)
    if x.numel() == 0:
        raise ValueError(f"x must not be empty; got {tuple(x.shape)}")
    count, inputs = x.shape[0], x.shape[3]
    _expect("w_q", w_q, (count, inputs, w_q.shape[2]), "(E, Dx, Dk)")
    _expect("w_k", w_k, (count, inputs, w_q.shape[2]), "(E, Dx, Dk)")
    _expect("w_v", w_v, (count, inputs, w_v.shape[2]), "(E, Dx, Dv)")
    _expect("w_out", w_out, (count, w_v.shape[2], w_out.shape[2]), "(E, Dv, C)")
    sizes = (x.shape[0], x.shape[1], x.shape[2])
    targets = _check_targets(targets, seeds, sizes, w_out.shape[2], x)
    return [x, targets, w_q, w_k, w_v, w_out], seeds


def _sizes(full: Sequence[Tensor]) -> tuple[int, int, int, int]:
    """Dx, Dk, Dv, C of x, targets and the weights."""
    return full[0].shape[3], full[2].shape[2], full[4].shape[2], full[5].shape[2]


def single_head_step(
    x: Tensor,
    targets: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> WeightStep:
    """Loss and gradients of a one-head model, projections included: q = x w_q, k = x w_k, v = x w_v.

    x (N, Dx) or (B, N, Dx); w_q, w_k (Dx, Dk); w_v (Dx, Dv); w_out (Dv, C); targets (N,) or (B, N) int64 in [0, C), or
    with a last axis C the weights of the classes. With a seed axis E in front, all have it. float32 or float64.
    Returns WeightStep(loss () or (E,), dw_q, dw_k, dw_v, dw_out). Raises ValueError naming the argument at fault."""
    full, seeds = _check_weights(x, targets, (w_q, w_k, w_v, w_out))
    with torch.no_grad():
        kernels = _implementation(full[0], *_sizes(full))
        step = kernels.single_head_step(*full, causal, _scale(scale, w_q.shape[-1]))
    return step if seeds else WeightStep(*(t[0] for t in step))


def train_single_head(
    x: Tensor,
    targets: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    *,
    rates: Tensor | Sequence[float],
    steps: int,
    record_every: int = 10,
    held_out: tuple[Tensor, Tensor] | None = None,
    diverged_above: float | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> Training:
    """Full-batch gradient descent of E one-head models at once, each with its own data, weights and learning rates.

    x (E, N, Dx) or (E, B, N, Dx) and all else as for `single_head_step` with a seed axis; rates (4,) or (E, 4), the
    learning rates of w_q, w_k, w_v and w_out; held_out: x and targets of the same shapes, scored at every record.
    A seed whose loss is NaN or exceeds `diverged_above` (4 ln C unless given) stops and is marked as diverged.
    float32. One thread, or on a GPU one program, trains one seed; the numbers are those of `single_head_step` and
    w −= rate · dw.
    Returns `Training`. Raises ValueError naming the argument at fault."""
    full, seeds = _check_weights(x, targets, (w_q, w_k, w_v, w_out))
    if not seeds:
        raise ValueError(f"w_q must have a seed axis, (E, Dx, Dk); got {tuple(w_q.shape)}")
    if x.dtype != torch.float32:
        raise ValueError(f"x must be float32 for the trainer; got {x.dtype}")
    for name, number in (("steps", steps), ("record_every", record_every)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1; got {number}")
    rates = torch.as_tensor(rates, dtype=torch.float32, device=x.device)
    if rates.shape not in ((4,), (len(full[0]), 4)):
        raise ValueError(f"rates must be (4,) or (E, 4) = ({len(full[0])}, 4); got {tuple(rates.shape)}")
    fresh = None
    if held_out is not None:
        fresh_x, fresh_targets = held_out
        _expect("held_out x", fresh_x, x.shape, "the shape of x")
        sizes = (full[0].shape[0], full[0].shape[1], full[0].shape[2])
        _same_kind({"x": x, "held_out x": fresh_x})
        fresh = (
            fresh_x.reshape(full[0].shape),
            _check_targets(fresh_targets, True, sizes, w_out.shape[-1], x),
        )
        if fresh[1].dim() != full[1].dim():
            raise ValueError("held_out targets must be classes or weights of classes, as targets are")
    limit = 4 * math.log(w_out.shape[-1]) if diverged_above is None else float(diverged_above)
    with torch.no_grad():
        weights, loss, records = _implementation(full[0], *_sizes(full)).train_single_head(
            full[0], full[1], full[2:], rates.expand(len(full[0]), 4), steps, record_every, limit, fresh, causal,
            _scale(scale, w_q.shape[-1]),
        )  # fmt: skip
    recorded = tuple(range(0, steps + 1, record_every))
    named = records.unbind(-1)
    diverged = ~(loss[:, -1] <= limit)
    return Training._make([tuple(weights), loss, diverged, recorded, *named[:4], records[..., 4:8], *named[8:]])
