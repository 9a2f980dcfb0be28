"""Mamba (Gu & Dao 2023): gated selective state space block, for one model or for an ensemble over seeds.

    x, z = W_in h;  x = silu(conv(x));  Δ, B, C = W_x x;  Δ = softplus(W_Δ Δ + b_Δ)
    out = W_out (scan(x, Δ, −exp(A_log), B, C, D) · silu(z))

`Mamba` is the plain module with mamba-ssm's parameter names and shapes, so that its state dicts load unchanged.
`MambaBlock` is the residual block of the ensemble models: the same names, a leading seed axis E on every parameter.
Activations stay channel-last; the kernels read x, z, Δ, B and C through their strides, without a transpose or a copy.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.causal_conv1d import WIDTHS, causal_conv1d_seeds, causal_conv1d_update
from ..ops.selective_scan import selective_scan_seeds, selective_state_update
from .ensemble import LayerNorm, Linear
from .initial import uniform_weights
from .sequence import ModelConfig

# Sizes of the ensemble's block: mamba-ssm's defaults.
D_STATE, D_CONV, EXPAND = 16, 4, 2
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 0.1, 1e-4
# nn.Linear draws from U(−1/√fan-in, 1/√fan-in), which has this times 1/√fan-in as its standard deviation.
LINEAR_GAIN = 3**-0.5


def step_bias(log_uniform: Tensor, dt_min: float, dt_max: float, floor: float) -> Tensor:
    """Inverse softplus of step sizes spread evenly on a log scale; log_uniform in [0, 1)."""
    dt = torch.exp(log_uniform * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)).clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


def decay_rates(channels: int, states: int) -> Tensor:
    """A_log (channels, states) of the S4D-real start: A = −1, −2, …, −N in every channel."""
    return torch.arange(1, states + 1, dtype=torch.float32).log().repeat(channels, 1)


def rates(A_log: Tensor) -> Tensor:
    """A = −exp(A_log), in float32 at least: a rounding of A is multiplied by the length of the memory."""
    return -torch.exp(A_log.to(torch.promote_types(A_log.dtype, torch.float32)))


def rows_times(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ for every seed: x (E, B, L, d_in), weight (E, d_out, d_in) → (E, B, L, d_out)."""
    # Under autocast bmm itself casts both; elsewhere their dtypes agree.
    return torch.bmm(x.flatten(1, 2), weight.transpose(1, 2)).unflatten(1, x.shape[1:3])


def mix(
    xz: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_weight: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
    return_last_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The block between its two outer projections: xz (E, B, L, 2·d_inner) → y (E, B, L, d_inner), last state.

    conv_weight (E, d_inner, W), conv_bias (E, d_inner); x_proj (E, R + 2N, d_inner); dt_weight (E, d_inner, R), dt_bias
    (E, d_inner); A_log (E, d_inner, N); D (E, d_inner). last state (E, B, d_inner, N), None unless asked."""
    x, z = xz.transpose(2, 3).chunk(2, 2)
    x = causal_conv1d_seeds(x, conv_weight, conv_bias, activation="silu")
    rank, states = dt_weight.shape[-1], A_log.shape[-1]
    dt, B, C = rows_times(x.transpose(2, 3), x_proj).split([rank, states, states], -1)
    result = selective_scan_seeds(
        x,
        rows_times(dt, dt_weight).transpose(2, 3),
        rates(A_log),
        B.transpose(2, 3).unsqueeze(2),
        C.transpose(2, 3).unsqueeze(2),
        D,
        z,
        dt_bias,
        delta_softplus=True,
        return_last_state=return_last_state,
    )
    y, last = result if isinstance(result, tuple) else (result, None)
    return y.transpose(2, 3), last


class Mamba(nn.Module):
    """Mamba mixer, a drop-in for mamba_ssm's: (B, L, d_model) → (B, L, d_model), on any device, nothing to compile.

    dt_rank "auto" is ⌈d_model / 16⌉. d_conv 2 to 4. Loads a `mamba_ssm.Mamba` state dict unchanged, and starts from
    the same distribution: A = −1 … −N, D = 1, step sizes log-uniform in [dt_min, dt_max] and at least dt_init_floor.
    Generation: `state = mamba.allocate_inference_cache(batch)`, then `mamba(prompt, cache=state)` or `mamba.step(…)`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = D_STATE,
        d_conv: int = D_CONV,
        expand: float = EXPAND,
        dt_rank: int | str = "auto",
        dt_min: float = DT_MIN,
        dt_max: float = DT_MAX,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = DT_FLOOR,
        conv_bias: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if d_conv not in WIDTHS:
            raise ValueError(f"d_conv must be 2, 3 or 4; got {d_conv}")
        if dt_init not in ("random", "constant"):
            raise ValueError(f"dt_init must be 'random' or 'constant'; got {dt_init!r}")
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else int(dt_rank)
        inner = self.d_inner
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias, **made)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, padding=d_conv - 1, groups=inner, bias=conv_bias, **made)
        self.x_proj = nn.Linear(inner, self.dt_rank + 2 * d_state, bias=False, **made)
        self.dt_proj = nn.Linear(self.dt_rank, inner, bias=True, **made)
        # Kept in float32 whatever dtype is: their gradients are sums over the whole batch.
        self.A_log = nn.Parameter(decay_rates(inner, d_state).to(device))
        self.D = nn.Parameter(torch.ones(inner, device=device))
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **made)
        # Marks that mamba-ssm's training scripts look for.
        self.A_log._no_weight_decay = self.D._no_weight_decay = True  # type: ignore[attr-defined]
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]
        with torch.no_grad():
            spread = self.dt_rank**-0.5 * dt_scale
            self.dt_proj.weight.uniform_(-spread, spread) if dt_init == "random" else self.dt_proj.weight.fill_(spread)
            drawn = torch.rand(inner, device=device)
            self.dt_proj.bias.copy_(step_bias(drawn, dt_min, dt_max, dt_init_floor))

    def forward(self, hidden_states: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """(B, L, d_model) → (B, L, d_model); with `cache`, of a new sequence, leaves it ready for `step`."""
        if hidden_states.dim() != 3 or hidden_states.shape[-1] != self.d_model:
            raise ValueError(f"hidden_states must be (B, L, {self.d_model}); got {tuple(hidden_states.shape)}")
        xz = self.in_proj(hidden_states)
        y, last = mix(
            xz[None],
            self.conv1d.weight.transpose(0, 1),
            None if self.conv1d.bias is None else self.conv1d.bias[None],
            self.x_proj.weight[None],
            self.dt_proj.weight[None],
            self.dt_proj.bias[None],
            self.A_log[None],
            self.D[None],
            return_last_state=cache is not None,
        )
        if cache is not None and last is not None:
            conv_state, ssm_state = cache
            x = xz[..., : self.d_inner].transpose(1, 2)
            conv_state.copy_(F.pad(x, (self.d_conv - x.shape[-1], 0)))  # a negative pad keeps the last d_conv
            ssm_state.copy_(last[0])
        return self.out_proj(y[0])

    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One position (B, 1, d_model) → (B, 1, d_model); both states are updated in place and returned."""
        if hidden_states.dim() != 3 or hidden_states.shape[1] != 1:
            raise ValueError(f"step takes one position at a time, (B, 1, d_model); got {tuple(hidden_states.shape)}")
        x, z = self.in_proj(hidden_states.squeeze(1)).chunk(2, -1)
        x = causal_conv1d_update(x, conv_state, self.conv1d.weight.squeeze(1), self.conv1d.bias, "silu")
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], -1)
        y = selective_state_update(
            ssm_state,
            x,
            F.linear(dt, self.dt_proj.weight),
            rates(self.A_log),
            B,
            C,
            self.D,
            z,
            self.dt_proj.bias,
            dt_softplus=True,
        )
        return self.out_proj(y).unsqueeze(1), conv_state, ssm_state

    def allocate_inference_cache(self, batch_size: int, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Zero states of a new sequence: the last inputs (B, d_inner, d_conv) and the state (B, d_inner, d_state)."""
        weight = self.conv1d.weight
        narrow = weight.dtype if dtype is None else dtype
        # The state is a running sum: float32 at least, whatever the weights are.
        wide = torch.promote_types(narrow, torch.float32)
        conv = torch.zeros(batch_size, self.d_inner, self.d_conv, device=weight.device, dtype=narrow)
        return conv, torch.zeros(batch_size, self.d_inner, self.d_state, device=weight.device, dtype=wide)


class ShortConvolution(nn.Module):
    """Weights of the depthwise convolution of every seed: weight (E, d_inner, W), bias (E, d_inner)."""

    def __init__(self, seeds: int, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seeds, channels, width))
        self.bias = nn.Parameter(torch.empty(seeds, channels))

    def reset_seeds(self, seeds: Sequence[int], name: str) -> None:
        """nn.Conv1d's start: U(−1/√W, 1/√W)."""
        bound = self.weight.shape[-1] ** -0.5
        for part, parameter in (("weight", self.weight), ("bias", self.bias)):
            parameter.copy_(uniform_weights(seeds, f"{name}.{part}", tuple(parameter.shape[1:]), -bound, bound))


class StepProjection(nn.Module):
    """Low-rank map to the step sizes of every seed: weight (E, d_inner, R), bias (E, d_inner)."""

    def __init__(self, seeds: int, rank: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seeds, channels, rank))
        self.bias = nn.Parameter(torch.empty(seeds, channels))

    def reset_seeds(self, seeds: Sequence[int], name: str) -> None:
        """mamba-ssm's start: U(−1/√R, 1/√R), and step sizes log-uniform in [0.001, 0.1]."""
        bound = self.weight.shape[-1] ** -0.5
        self.weight.copy_(uniform_weights(seeds, f"{name}.weight", tuple(self.weight.shape[1:]), -bound, bound))
        drawn = uniform_weights(seeds, f"{name}.bias", tuple(self.bias.shape[1:]), 0.0, 1.0)
        self.bias.copy_(step_bias(drawn, DT_MIN, DT_MAX, DT_FLOOR))


class MambaMixer(nn.Module):
    """Mamba of every seed: x (E, B, N, d) → (E, B, N, d); mamba-ssm's parameter names, each with a seed axis."""

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        width, inner, rank = config.d_model, EXPAND * config.d_model, math.ceil(config.d_model / 16)
        self.in_proj = Linear(seeds, width, 2 * inner, bias=False, gain=LINEAR_GAIN)
        self.conv1d = ShortConvolution(seeds, inner, D_CONV)
        self.x_proj = Linear(seeds, inner, rank + 2 * D_STATE, bias=False, gain=LINEAR_GAIN)
        self.dt_proj = StepProjection(seeds, rank, inner)
        self.A_log = nn.Parameter(decay_rates(inner, D_STATE).repeat(seeds, 1, 1))
        self.D = nn.Parameter(torch.ones(seeds, inner))
        # mamba-ssm divides by √layers: one residual branch a layer.
        self.out_proj = Linear(seeds, inner, width, bias=False, gain=LINEAR_GAIN * config.layers**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        xz = self.in_proj(x)
        conv, step = self.conv1d, self.dt_proj
        y, _ = mix(xz, conv.weight, conv.bias, self.x_proj.weight, step.weight, step.bias, self.A_log, self.D)
        return self.out_proj(y)


class MambaBlock(nn.Module):
    """x + mamba(norm x)."""

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        self.ln, self.mamba = LayerNorm(seeds, config.d_model), MambaMixer(seeds, config)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mamba(self.ln(x))
