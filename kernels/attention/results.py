"""What the attention kernels return. reference.py defines each quantity."""

from typing import NamedTuple

from torch import Tensor


class AttentionForward(NamedTuple):
    """Result of the forward pass; the last three are None where statistics were not asked for.

    o (B, H, N_q, D_v) in the dtype of q; lse, entropy, max_weight (B, H, N_q) float32; argmax (B, H, N_q) int32.
    """

    o: Tensor
    lse: Tensor
    entropy: Tensor | None
    max_weight: Tensor | None
    argmax: Tensor | None


class RowStatistics(NamedTuple):
    """Per query row, each (B, H, N_q) float32: E_α[b], Var_α[b] and Σ_j (∂L/∂s_ij)²."""

    expected: Tensor
    variance: Tensor
    score_norm2: Tensor


class ColumnStatistics(NamedTuple):
    """Per key and per query head, each (B, H, N_k) float32: Σ_i α_ij, Σ_i ∂L/∂s_ij, Σ_i |∂L/∂s_ij|, ‖Σ_i α_ij u_i‖."""

    responsibility: Tensor
    routing: Tensor
    absolute_routing: Tensor
    value_norm: Tensor


class AttentionBackward(NamedTuple):
    """Gradients in the dtypes of q, k and v (dk, dv summed over the heads of a group) and, on request, statistics."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    rows: RowStatistics | None
    columns: ColumnStatistics | None
