"""Attention with the terms of its gradient: o_i = Σ_j α_ij v_j, α = softmax(scale q·k), masked causally or by lengths.

`attention` is the differentiable op, `scaled_dot_product_attention` wears torch's signature, `attention_dynamics`
evaluates the closed forms for a given upstream gradient, `record_dynamics` collects them from a model's own backward.
"""

import math
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from bayesattn_fast.kernels.attention import reference
from bayesattn_fast.kernels.attention.reference import Dense
from bayesattn_fast.kernels.attention.results import ColumnStatistics, RowStatistics

from .attention_autograd import Attention, attention_backward, attention_forward
from .attention_record import Record, receiver, record_dynamics, refuse_while_recording

__all__ = [
    "AttentionDynamics",
    "AttentionStatistics",
    "Record",
    "attention",
    "attention_dynamics",
    "record_dynamics",
    "scaled_dot_product_attention",
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WIDEST = 256


class AttentionStatistics(NamedTuple):
    """What the forward pass knows of each row beside its output, all (B, H, N_q).

    lse = log Σ_j exp s_ij in nats, −inf in a row without keys, differentiable; entropy H(α_i) in nats, max_weight
    max_j α_ij and argmax, the first j that attains it (int32, −1 in a row without keys): not differentiable.
    float32 (float64 for float64 inputs).
    """

    lse: Tensor
    entropy: Tensor
    max_weight: Tensor
    argmax: Tensor


class AttentionDynamics(NamedTuple):
    """Every closed form of one attention layer at upstream gradient u = ∂L/∂o.

    o, dq, dk, dv in the inputs' dtype; forward statistics, RowStatistics and ColumnStatistics in float32 (float64 for
    float64); dense is None unless asked for, else the N_q × N_k matrices α, b, advantage A = −(b − E_α[b]), ∂L/∂s.
    """

    o: Tensor
    forward: AttentionStatistics
    dq: Tensor
    dk: Tensor
    dv: Tensor
    rows: RowStatistics
    columns: ColumnStatistics
    dense: Dense | None


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    lengths: Tensor | None = ...,
    query_lengths: Tensor | None = ...,
    return_stats: Literal[False] = ...,
    tf32: bool = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    lengths: Tensor | None = ...,
    query_lengths: Tensor | None = ...,
    return_stats: Literal[True],
    tf32: bool = ...,
) -> tuple[Tensor, AttentionStatistics]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    return_stats: bool = False,
    tf32: bool = False,
) -> Tensor | tuple[Tensor, AttentionStatistics]:
    """Softmax attention, differentiable once by kernel and twice by formula.

    q (B, H, N_q, D), k (B, H_kv, N_k, D), v (B, H_kv, N_k, D_v), H a multiple of H_kv, D and D_v in 1..256, any
    strides; float32, bfloat16 or float16 (accumulated in float32), or float64 (computed by the reference). `causal`
    lets row i see keys j ≤ i. `lengths` and `query_lengths` (B,) integers: live keys and live rows of each sequence. A
    row without keys gives 0. scale defaults to 1/√D. `tf32` lets a GPU round float32 operands.
    Precision in float32: on a CPU every result is within 2e-6 of float64, relative to its norm, whatever the size of
    the scores (weights below e^−86 count as 0); on a GPU a score is off by up to 1e-7 scale |q||k|, and the weights
    relatively by as much: 1e-5 where scores reach 100, 1e-3 at 10⁴.
    Returns o (B, H, N_q, D_v) in q's dtype, with return_stats also AttentionStatistics.
    Raises TypeError and ValueError, before any launch, naming the argument, what came and what is accepted;
    forward-mode differentiation raises NotImplementedError or RuntimeError. Vaswani et al. (2017), eq. 1.
    """
    scale = _checked(q, k, v, scale, lengths, query_lengths)
    recorded = receiver(q, causal)
    statistics = return_stats or recorded is not None
    out = Attention.apply(q, k, v, _counts(lengths), _counts(query_lengths), causal, scale, statistics, tf32, recorded)
    return (out[0], AttentionStatistics(*out[1:])) if return_stats else out[0]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention with the same arguments, results and errors.

    Floating-point tensors (…, H, N, D) without mask or dropout run on this package's kernels; whatever those do not
    take goes to torch's own function, except inside `record_dynamics`, where that raises RuntimeError. Leading
    dimensions are joined without a copy where the strides allow.
    """
    if attn_mask is not None or dropout_p != 0.0 or not _ours(query, key, value, scale, enable_gqa):
        refuse_while_recording("attention with a mask, dropout, float64 or broadcast batches")
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    lead = query.shape[:-2]
    q, k, v = (_four_dimensional(x) for x in (query, key, value))
    o = attention(q, k, v, causal=is_causal, scale=scale)
    return o.reshape(*lead, *o.shape[-2:])


def attention_dynamics(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    dense: bool = False,
) -> AttentionDynamics:
    """The closed forms of attention's gradient at a given upstream gradient u = ∂L/∂o (B, H, N_q, D_v), in O(N) memory.

    Arguments as in `attention`; `dense=True` adds the N_q × N_k matrices, in O(N²). Nothing returned is differentiable.
    """
    scale = _checked(q, k, v, scale, lengths, query_lengths)
    _check_upstream(u, q, v)
    live, live_rows = _counts(lengths), _counts(query_lengths)
    with torch.no_grad():
        q, k, v, u = (x.detach() for x in (q, k, v, u))
        o, *statistics = attention_forward(q, k, v, live, live_rows, causal, scale, True, False)
        dq, dk, dv, *sums = attention_backward(
            q, k, v, o, statistics[0], u, None, live, live_rows, causal, scale, True, False
        )
        matrices = None
        if dense:
            matrices = reference.dense(q, k, v, u, causal=causal, scale=scale, lengths=live, query_lengths=live_rows)
    rows, columns = RowStatistics(*sums[:3]), ColumnStatistics(*sums[3:])
    return AttentionDynamics(o, AttentionStatistics(*statistics), dq, dk, dv, rows, columns, matrices)


def _counts(lengths: Tensor | None) -> Tensor | None:
    return None if lengths is None else lengths.to(torch.int32)


def _checked(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, lengths: Tensor | None, query_lengths: Tensor | None
) -> float:
    """The scale in force, once everything about the arguments is in order."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must be (batch, heads, positions, head size); got shape {tuple(x.shape)}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} must be float32, bfloat16, float16 or float64; got {x.dtype}")
        if x.dtype != q.dtype or x.device != q.device:
            raise TypeError(f"{name} must match q, {q.dtype} on {q.device}; got {x.dtype} on {x.device}")
        if not 1 <= x.shape[3] <= WIDEST:
            raise ValueError(f"the head size of {name} must be in 1..{WIDEST}; got {x.shape[3]}")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(f"k must share q's batch and head size; got k {tuple(k.shape)}, q {tuple(q.shape)}")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v must share k's batch, heads and positions; got v {tuple(v.shape)}, k {tuple(k.shape)}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q's heads must be a multiple of k's; got {q.shape[1]} and {k.shape[1]}")
    _check_lengths("lengths", lengths, k)
    _check_lengths("query_lengths", query_lengths, q)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    # A comparison, where math.isfinite would break the graph of a compiler that keeps sizes symbolic.
    if not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be finite; got {scale}")
    return scale


def _check_lengths(name: str, lengths: Tensor | None, rows: Tensor) -> None:
    if lengths is None:
        return
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise TypeError(f"{name} must be integers; got {lengths.dtype}")
    if lengths.shape != rows.shape[:1]:
        raise ValueError(f"{name} must be (batch,) = ({rows.shape[0]},); got shape {tuple(lengths.shape)}")
    if lengths.device != rows.device:
        raise TypeError(f"{name} must be on {rows.device}; got {lengths.device}")


def _check_upstream(u: Tensor, q: Tensor, v: Tensor) -> None:
    wanted = (*q.shape[:3], v.shape[3])
    if u.shape != wanted:
        raise ValueError(f"u must have the output's shape {wanted}; got {tuple(u.shape)}")
    if u.dtype != q.dtype or u.device != q.device:
        raise TypeError(f"u must match q, {q.dtype} on {q.device}; got {u.dtype} on {u.device}")


def _ours(query: Tensor, key: Tensor, value: Tensor, scale: float | None, enable_gqa: bool) -> bool:
    """Whether the kernels take these tensors as they are; torch's function takes, or refuses, the others."""
    tensors = (query, key, value)
    if any(x.dtype not in DTYPES[:3] or x.dtype != query.dtype or x.device != query.device for x in tensors):
        return False
    if any(x.dim() < 2 or x.dim() != query.dim() or not 1 <= x.shape[-1] <= WIDEST for x in tensors):
        return False
    if any(x.is_nested or x.layout != torch.strided or x.shape[-2] == 0 for x in tensors):
        return False
    lead = 3 if enable_gqa and query.dim() >= 3 else 2
    if any(x.shape[:-lead] != query.shape[:-lead] for x in tensors):
        return False
    if lead == 3 and (key.shape[-3] != value.shape[-3] or not key.shape[-3] or query.shape[-3] % key.shape[-3]):
        return False
    shapes_agree = query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    return shapes_agree and (scale is None or math.isfinite(scale)) and query.device.type in ("cpu", "cuda")


def _four_dimensional(x: Tensor) -> Tensor:
    """(…, H, N, D) as (B, H, N, D)."""
    if x.dim() > 4:
        return x.flatten(0, -4)
    return x.reshape((1,) * (4 - x.dim()) + x.shape)
