"""Selective scan in plain PyTorch, any float dtype: the definition that the fast kernels are checked against.

    Δ_t = delta_t + delta_bias, then softplus(Δ_t) if asked      h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t u_t B_t,  h_0 = 0
    y_t = C_t · h_t + D u_t                                      out_t = y_t · silu(z_t)

Gu & Dao (2023), eq. 2 and algorithm 2, with mamba-ssm's Euler step for B.

The contract of every implementation (the seed axis E is explicit; a stride of 0 along it means shared weights):

    selective_scan_forward(u, delta, A, B, C, D, z, delta_bias, delta_softplus, want_last_state)
        -> (out, last_state, states)
    selective_scan_backward(dout, dlast_state, u, delta, A, B, C, D, z, delta_bias, delta_softplus, states)
        -> (du, ddelta, dA, dB, dC, dD, dz, ddelta_bias)

u, delta, z, dout (E, B, D, L); A (E, D, N); B, C (E, D, N) fixed, or (E, B, G, N, L) with D a multiple of G;
D, delta_bias (E, D). D, z, delta_bias and dlast_state may be None; their gradients then are None.
u, delta, z, B, C (E, B, G, N, L) and dout share one dtype; A, D, delta_bias, fixed B and C, last_state, states and
dlast_state have the state's dtype (`state_dtype(u.dtype)`: float32, or float64 for float64).
out, du, ddelta and dz have u's dtype and the layout of `torch.empty_like(u)`; the other gradients are contiguous, in
the dtype of what they belong to. Any strides, 0 included; sizes 0 are handled by the caller, L ≥ 1.
last_state (E, B, D, N), or an empty (E, 0) unless wanted. states (E, B, K, N, D), K = saved_states(L): h at the end of
every CHUNK steps but the last, from which the backward pass recomputes the steps of one chunk at a time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def saved_states(length: int) -> int:
    """How many chunk states a scan of `length` steps keeps: none when one chunk holds it all."""
    return max(length - 1, 0) // CHUNK


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the recurrence: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def step_sizes(delta: Tensor, delta_bias: Tensor | None, delta_softplus: bool) -> tuple[Tensor, Tensor]:
    """Δ (E, B, D, L) in the state's dtype, and dΔ/d(delta)."""
    raw = delta.to(state_dtype(delta.dtype))
    if delta_bias is not None:
        raw = raw + delta_bias[:, None, :, None]
    if not delta_softplus:
        return raw, torch.ones_like(raw)
    # Above 20, softplus(x) = x to the last bit of float32 (the threshold of torch and of mamba-ssm).
    return F.softplus(raw), torch.where(raw > 20, 1.0, torch.sigmoid(raw))


def per_channel(matrix: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """B or C as (E, B or 1, D, N, L or 1), whatever its form."""
    if matrix.dim() == 3:
        return matrix.to(dtype)[:, None, :, :, None]
    return matrix.to(dtype).repeat_interleave(channels // matrix.shape[2], 2)


def _scan(step: Tensor, u: Tensor, A: Tensor, B: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Decays exp(Δ_t A) and states h_t, each a list over t of (E, B, D, N)."""
    decays, states = [], []
    h = torch.zeros_like(step[..., 0, None] * A[:, None])
    for t in range(step.shape[-1]):
        decays.append(torch.exp(step[..., t, None] * A[:, None]))
        h = decays[t] * h + (step[..., t] * u[..., t])[..., None] * B[..., t if B.shape[-1] > 1 else 0]
        states.append(h)
    return decays, states


def selective_scan_forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    want_last_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, last_state, states); see the module's docstring."""
    dtype, length = state_dtype(u.dtype), u.shape[-1]
    x = u.to(dtype)
    step, _ = step_sizes(delta, delta_bias, delta_softplus)
    B, C = per_channel(B, u.shape[2], dtype), per_channel(C, u.shape[2], dtype)
    _, states = _scan(step, x, A, B)
    y = (torch.stack(states, -1) * C).sum(3)
    if D is not None:
        y = y + x * D[:, None, :, None]
    if z is not None:
        y = y * F.silu(z.to(dtype))
    count = saved_states(length)
    kept = [states[CHUNK * k - 1].transpose(2, 3) for k in range(1, count + 1)]
    last = states[-1] if want_last_state else x.new_empty(u.shape[0], 0)
    return y.to(u.dtype), last, _stack(kept, x, A.shape[-1])


def _stack(kept: list[Tensor], x: Tensor, count: int) -> Tensor:
    """Chunk states (E, B, K, N, D), K possibly 0."""
    return torch.stack(kept, 2) if kept else x.new_empty(*x.shape[:2], 0, count, x.shape[2])


def _to_form(gradient: Tensor, like: Tensor) -> Tensor:
    """Gradient (E, B, D, N, L) of B or C, summed to the form that it was given in."""
    if like.dim() == 3:
        return gradient.sum((1, 4))
    return gradient.unflatten(2, (like.shape[2], -1)).sum(3).to(like.dtype)


def selective_scan_backward(
    dout: Tensor,
    dlast_state: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    states: Tensor | None,
) -> Gradients:
    """Gradients by the reverse recurrence g_t = C_t dy_t + exp(Δ_{t+1} A) g_{t+1}, g = dL/dh; `states` is not needed.

    Differentiable by autograd itself, which is how second derivatives are had.
    """
    dtype, channels, length = state_dtype(u.dtype), u.shape[2], u.shape[-1]
    x, dy = u.to(dtype), dout.to(dtype)
    step, slope = step_sizes(delta, delta_bias, delta_softplus)
    wide_B, wide_C = per_channel(B, channels, dtype), per_channel(C, channels, dtype)
    decays, states_list = _scan(step, x, A, wide_B)
    h = torch.stack(states_list, -1)
    dz = None
    if z is not None:
        gate = z.to(dtype)
        sigmoid = torch.sigmoid(gate)
        y = (h * wide_C).sum(3) + (0 if D is None else x * D[:, None, :, None])
        dz = (dy * y * sigmoid * (1 + gate * (1 - sigmoid))).to(u.dtype)
        dy = dy * gate * sigmoid
    carried = torch.zeros_like(h[..., 0]) if dlast_state is None else dlast_state
    adjoints = []
    for t in reversed(range(length)):
        g = dy[..., t, None] * wide_C[..., t if wide_C.shape[-1] > 1 else 0] + carried
        adjoints.append(g)
        carried = decays[t] * g
    g = torch.stack(adjoints[::-1], -1)
    # dL/d(Δ_t A) per state: g_t ∘ exp(Δ_t A) ∘ h_{t−1}
    through_decay = g * torch.stack(decays, -1) * F.pad(h[..., :-1], (1, 0))
    g_B = (g * wide_B).sum(3)
    dstep = (through_decay * A[:, None, :, :, None]).sum(3) + x * g_B
    du = step * g_B + (0 if D is None else dy * D[:, None, :, None])
    ddelta = dstep * slope
    return (
        du.to(u.dtype),
        ddelta.to(u.dtype),
        (through_decay * step[:, :, :, None]).sum((1, 4)),
        _to_form(g * (step * x)[:, :, :, None], B),
        _to_form(h * dy[:, :, :, None], C),
        None if D is None else (dy * x).sum((1, 3)),
        dz,
        None if delta_bias is None else ddelta.sum((1, 3)),
    )
