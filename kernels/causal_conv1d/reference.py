"""Short causal depthwise convolution in plain PyTorch, any float dtype: the definition.

    pre_t = bias + Σ_k weight_k x_{t−W+1+k},  k = 0 … W−1;  out_t = pre_t, or silu(pre_t)

x_s for s < 0 is the initial state, zero if there is none. With seq_idx, only positions of the same sequence are summed
(the initial state belongs to the sequence of position 0) and positions of a negative index give 0, bias included:
causal-conv1d's rules.

The contract of every implementation (the seed axis E is explicit; a stride of 0 along it means shared weights):

    causal_conv1d_forward(x, weight, bias, seq_idx, initial_states, silu) -> out
    causal_conv1d_backward(dout, x, weight, bias, seq_idx, initial_states, silu) -> (dx, dweight, dbias, dinitial)

x, dout (E, B, D, L); weight (E, D, W); bias (E, D); seq_idx (E, B, L) int32; initial_states (E, B, D, W − 1).
x, dout and initial_states share one dtype; weight and bias are float32 (float64 for float64). bias, seq_idx and
initial_states may be None; the gradient of an absent one is None. out and dx have x's dtype and the layout of
`torch.empty_like(x)`; the other gradients are contiguous. Any strides; sizes 0 are handled by the caller.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def _taps(x: Tensor, width: int, initial_states: Tensor | None) -> Tensor:
    """x with its past in front: (E, B, D, W − 1 + L)."""
    if initial_states is None:
        return F.pad(x, (width - 1, 0))
    return torch.cat([initial_states.to(x.dtype), x], -1)


def _allowed(seq_idx: Tensor | None, width: int, has_initial: bool) -> list[Tensor | None]:
    """For every tap k, whether position t may read t − W + 1 + k: (E, B, 1, L), or None for always."""
    if seq_idx is None:
        return [None] * width
    length = seq_idx.shape[-1]
    before = seq_idx[..., :1].expand(*seq_idx.shape[:2], width - 1)
    past = torch.cat([before if has_initial else torch.full_like(before, -1), seq_idx], -1)
    return [((past[..., k : k + length] == seq_idx) & (seq_idx >= 0)).unsqueeze(2) for k in range(width)]


def _preactivation(
    taps: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, allowed: list[Tensor | None]
) -> Tensor:
    length = taps.shape[-1] - weight.shape[-1] + 1
    pre = torch.zeros_like(taps[..., :length])
    for k, mask in enumerate(allowed):
        term = weight[:, None, :, k, None] * taps[..., k : k + length]
        pre = pre + (term if mask is None else torch.where(mask, term, 0.0))
    if bias is not None:
        pre = pre + bias[:, None, :, None]
    return pre if seq_idx is None else torch.where((seq_idx >= 0).unsqueeze(2), pre, 0.0)


def causal_conv1d_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, silu: bool
) -> Tensor:
    """out (E, B, D, L); see the module's docstring."""
    width = weight.shape[-1]
    allowed = _allowed(seq_idx, width, initial_states is not None)
    pre = _preactivation(_taps(x.to(weight.dtype), width, initial_states), weight, bias, seq_idx, allowed)
    return (F.silu(pre) if silu else pre).to(x.dtype)


def causal_conv1d_backward(
    dout: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
) -> Gradients:
    """(dx, dweight, dbias, dinitial_states); differentiable by autograd itself."""
    width, length = weight.shape[-1], x.shape[-1]
    allowed = _allowed(seq_idx, width, initial_states is not None)
    taps, dpre = _taps(x.to(weight.dtype), width, initial_states), dout.to(weight.dtype)
    if silu:
        pre = _preactivation(taps, weight, bias, seq_idx, allowed)
        sigmoid = torch.sigmoid(pre)
        dpre = dpre * sigmoid * (1 + pre * (1 - sigmoid))
    if seq_idx is not None:
        dpre = torch.where((seq_idx >= 0).unsqueeze(2), dpre, 0.0)
    dtaps, dweight = torch.zeros_like(taps), []
    for k, mask in enumerate(allowed):
        reaching = dpre if mask is None else torch.where(mask, dpre, 0.0)
        dweight.append((reaching * taps[..., k : k + length]).sum((1, 3)))
        dtaps = dtaps + F.pad(weight[:, None, :, k, None] * reaching, (k, width - 1 - k))
    # Copies: the two parts of dtaps must not share memory.
    return (
        dtaps[..., width - 1 :].to(x.dtype, copy=True),
        torch.stack(dweight, -1),
        None if bias is None else dpre.sum((1, 3)),
        None if initial_states is None else dtaps[..., : width - 1].to(initial_states.dtype, copy=True),
    )
