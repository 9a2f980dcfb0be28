"""Attention and its gradient in closed form, dense and in plain PyTorch: the definition the kernels are held to.

    s_ij = scale q_i·k_j      α_ij = exp(s_ij − lse_i)      o_i = Σ_j α_ij v_j      b_ij = u_i·v_j  with u = ∂L/∂o
    ∂L/∂s_ij = α_ij (b_ij − E_α[b]_i + dlse_i)              E_α[b]_i = Σ_j α_ij b_ij = u_i·o_i

Every implementation in this folder has the same two functions.

    forward(q, k, v, *, causal, scale, lengths, query_lengths, statistics, tf32=False) -> AttentionForward
    backward(q, k, v, o, lse, u, *, dlse=None, causal, scale, lengths, query_lengths, statistics, tf32=False)
        -> AttentionBackward

Shapes: q (B, H, N_q, D), k (B, H_kv, N_k, D), v (B, H_kv, N_k, D_v), o, u (B, H, N_q, D_v), lse, dlse (B, H, N_q);
H is a multiple of H_kv and query head h reads key head h // (H / H_kv); any of B, N_q, N_k may be 0; any strides.
Masks: causal is torch's top-left alignment, row i sees keys j ≤ i. `lengths` (B,) int32 counts the live keys of each
sequence, `query_lengths` (B,) int32 its live rows; None means all. A row that sees no key, or lies past query_lengths,
is dead: o = 0, lse = −inf, zero gradient, statistics 0, argmax −1; its u and dlse are not read.
A NaN or infinity in a key or value reaches only the rows that may see that key; in a key past `lengths`, nothing.
Types: o, dq, dk, dv in the dtype of q; lse and all statistics float32 (float64 for float64 inputs); argmax int32.
Arithmetic is float32 (or float64) inside. lse is in nats. float32 lse alone is too coarse to recover α where |lse| is
10⁴ (its rounding is 5e-4): rescale each row of exp(s − lse) to sum to 1, the error is one factor per row. A float32
score is off by up to 1e-7 scale |q||k|, and so, relatively, are the weights: native.cpp works out large scores in
double, the Triton kernels do not.
Statistics: entropy H(α_i) ≥ 0 in nats; max_weight max_j α_ij and argmax, the first j that attains it; per row E_α[b],
Var_α[b] = Σ_j α (b − E)² and score_norm2 = Σ_j (∂L/∂s_ij)²; per key and *query* head, over the head's live rows,
responsibility R_j = Σ_i α_ij, routing G_j = Σ_i ∂L/∂s_ij, absolute_routing Σ_i |∂L/∂s_ij|, value_norm ‖Σ_i α_ij u_i‖.
`tf32` lets a GPU kernel round float32 operands; others ignore it. `scale` is a finite float.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .results import AttentionBackward, AttentionForward, ColumnStatistics, RowStatistics


class Dense(NamedTuple):
    """The N_q × N_k quantities, each (B, H, N_q, N_k), zero where the mask hides a key.

    score s, weight α, compatibility b = u·v, advantage A = −(b − E_α[b]), score_gradient ∂L/∂s.
    """

    score: Tensor
    weight: Tensor
    compatibility: Tensor
    advantage: Tensor
    score_gradient: Tensor


def visible(q: Tensor, k: Tensor, causal: bool, lengths: Tensor | None, query_lengths: Tensor | None) -> Tensor:
    """Which key each row may see: bool, broadcastable to (B, H, N_q, N_k)."""
    rows = torch.arange(q.shape[-2], device=q.device)[:, None]
    keys = torch.arange(k.shape[-2], device=q.device)
    seen = (keys <= rows if causal else (keys >= 0) & (rows >= 0))[None, None]
    if lengths is not None:
        seen = seen & (keys < lengths[:, None])[:, None, None, :]
    if query_lengths is not None:
        seen = seen & (rows < query_lengths[:, None, None])[:, None]
    return seen


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    statistics: bool,
    tf32: bool = False,
) -> AttentionForward:
    """Softmax attention; see the module's docstring for the contract."""
    dtype = q.dtype
    q, k, v = _widen(q, k, v)
    k, v = _live_keys(k, lengths), _live_keys(v, lengths)
    k, v = _spread(k, q.shape[1]), _spread(v, q.shape[1])
    seen = visible(q, k, causal, lengths, query_lengths)
    shifted, exponential, top = _exponentials(q, k, seen, scale)
    total = exponential.sum(-1)
    weight = exponential / torch.where(total > 0, total, 1)[..., None]
    live = seen.any(-1).expand(total.shape)
    lse = torch.where(live, top[..., 0] + total.log(), -math.inf)
    o = torch.where(live[..., None], _mix(weight, v, seen), 0).to(dtype)
    if not statistics:
        return AttentionForward(o, lse, None, None, None)
    if k.shape[-2] == 0:
        return AttentionForward(o, lse, total * 0, total * 0, torch.full_like(total, -1, dtype=torch.int32))
    # Leaving the largest term, exactly 1, out of the sum keeps the small rest of a near-one-hot row:
    # entropy = log(1 + rest) − Σ_j α_ij (s_ij − max), two non-negative parts.
    argmax = torch.where(seen, shifted, -math.inf).argmax(-1, keepdim=True)
    rest = exponential.scatter(-1, argmax, 0.0).sum(-1)
    entropy = torch.where(live, rest.log1p() - (weight * torch.where(weight > 0, shifted, 0)).sum(-1), 0)
    max_weight = torch.where(live, 1 / (1 + rest), 0)
    return AttentionForward(o, lse, entropy, max_weight, torch.where(live, argmax[..., 0], -1).to(torch.int32))


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    u: Tensor,
    *,
    dlse: Tensor | None = None,
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    statistics: bool,
    tf32: bool = False,
) -> AttentionBackward:
    """Gradients and their statistics by the closed forms; o and lse, which the forms do not need, are not read."""
    dtype, groups = q.dtype, k.shape[1]
    q, k, v, u = _widen(q, k, v, u)
    k, v = _live_keys(k, lengths), _live_keys(v, lengths)
    k, v = _spread(k, q.shape[1]), _spread(v, q.shape[1])
    seen = visible(q, k, causal, lengths, query_lengths)
    live = seen.any(-1)
    u = torch.where(live[..., None], u, 0)
    dlse = None if dlse is None else torch.where(live, dlse, 0).to(q.dtype)
    weight, _, expected, centred = _weights_and_compatibility(q, k, v, u, seen, scale)
    gradient = weight * (centred if dlse is None else centred + dlse[..., None])
    gradient = torch.where(seen, gradient, 0)
    q = torch.where(live[..., None], q, 0)
    dq = scale * _mix(gradient, k, seen)
    dk = scale * _mix(gradient.mT, q, seen.mT)
    dv = _mix(weight.mT, u, seen.mT)
    rows = columns = None
    if statistics:
        rows = RowStatistics(expected, (weight * centred.square()).sum(-1), gradient.square().sum(-1))
        columns = ColumnStatistics(weight.sum(-2), gradient.sum(-2), gradient.abs().sum(-2), dv.norm(dim=-1))
    dk, dv = _gather(dk, groups), _gather(dv, groups)
    return AttentionBackward(dq.to(dtype), dk.to(dtype), dv.to(dtype), rows, columns)


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    causal: bool,
    scale: float,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
) -> Dense:
    """The N_q × N_k quantities themselves, for pictures and for tests; the only function here that returns them."""
    q, k, v, u = _widen(q, k, v, u)
    k, v = _live_keys(k, lengths), _live_keys(v, lengths)
    k, v = _spread(k, q.shape[1]), _spread(v, q.shape[1])
    seen = visible(q, k, causal, lengths, query_lengths)
    weight, compatibility, _, centred = _weights_and_compatibility(q, k, v, u, seen, scale)
    score = torch.where(seen, scale * (q @ k.mT), 0)
    return Dense(score, weight, compatibility, -centred, weight * centred)


def _widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """float64 stays, anything narrower is computed in float32."""
    return tuple(t if t.dtype == torch.float64 else t.float() for t in tensors)


def _live_keys(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Zeros in place of the keys past `lengths`, so that nothing in them can matter."""
    if lengths is None:
        return x
    return torch.where((torch.arange(x.shape[-2], device=x.device) < lengths[:, None])[:, None, :, None], x, 0)


def _spread(x: Tensor, heads: int) -> Tensor:
    """(B, H_kv, …) to (B, H, …), each key head repeated for the query heads of its group."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _gather(x: Tensor, groups: int) -> Tensor:
    """(B, H, …) to (B, H_kv, …), summing each group."""
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)


def _exponentials(q: Tensor, k: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """s − max, exp of it (0 where hidden), and the row maximum (…, 1), which is 0 in a row without keys."""
    score = torch.where(seen, scale * (q @ k.mT), -math.inf)
    top = score.detach().amax(-1, keepdim=True) if k.shape[-2] else score.new_zeros((*score.shape[:-1], 1))
    top = torch.where(seen.any(-1, keepdim=True), top, 0)
    shifted = torch.where(seen, score - top, 0)
    return shifted, torch.where(seen, shifted.exp(), 0), top


def _weights_and_compatibility(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, seen: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """α, b, E_α[b] and b − E_α[b]; the matrices are 0 where hidden.

    b is taken relative to that of the row's largest weight: where α is all but one-hot, b − E_α[b] is as small as the
    other weights, and a difference of b and E would be rounding errors.
    """
    _, exponential, _ = _exponentials(q, k, seen, scale)
    total = exponential.sum(-1, keepdim=True)
    weight = torch.where(seen, exponential / torch.where(total == 0, 1, total), 0)
    compatibility = torch.where(seen, u @ v.mT, 0)
    if k.shape[-2] == 0:
        return weight, compatibility, compatibility.sum(-1), compatibility
    at_largest = compatibility.gather(-1, weight.argmax(-1, keepdim=True))
    relative = torch.where(seen, compatibility - at_largest, 0)
    centre = (weight * relative).sum(-1, keepdim=True)
    centred = torch.where(seen, relative - centre, 0)
    return weight, compatibility, (at_largest + centre)[..., 0], centred


def _mix(weight: Tensor, x: Tensor, seen: Tensor) -> Tensor:
    """weight @ x, in which a non-finite row of x reaches only the rows that see it (0·NaN would reach all)."""
    broken = ~x.isfinite().all(-1)
    reached = (seen & broken[..., None, :]).any(-1, keepdim=True)
    return (weight @ torch.where(broken[..., None], 0, x)).masked_fill(reached, math.nan)
