"""Layers with a leading seed dimension: one batched matrix product serves every seed.

Shapes: E seeds, M rows (any flattened batch), d sizes. Parameters are (E, …); nothing crosses seeds.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """y = x Wᵀ + b for every seed: x (E, …, d_in) → (E, …, d_out); weight (E, d_out, d_in), bias (E, d_out)."""

    def __init__(self, seeds: int, inputs: int, outputs: int, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.weight = nn.Parameter(torch.empty(seeds, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(seeds, outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1, -2)
        weight = self.weight.transpose(1, 2)
        y = torch.bmm(rows, weight) if self.bias is None else torch.baddbmm(self.bias.unsqueeze(1), rows, weight)
        return y.unflatten(1, x.shape[1:-1])


class Embedding(nn.Module):
    """Rows of a table for every seed: tokens (E, …) int64 → (E, …, d); weight (E, V, d)."""

    def __init__(self, seeds: int, symbols: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(seeds, symbols, width))

    def forward(self, tokens: Tensor) -> Tensor:
        seeds, symbols, width = self.weight.shape
        first_row = torch.arange(seeds, device=tokens.device).mul_(symbols).view(-1, *[1] * (tokens.dim() - 1))
        return F.embedding(tokens + first_row, self.weight.view(seeds * symbols, width))


class LayerNorm(nn.Module):
    """Normalises the last axis; scale and shift (E, d) of each seed."""

    def __init__(self, seeds: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(seeds, width))
        self.bias = nn.Parameter(torch.zeros(seeds, width))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[0] == 1:
            return F.layer_norm(x, x.shape[-1:], self.weight[0], self.bias[0])
        per_seed = (-1, *[1] * (x.dim() - 2), x.shape[-1])
        return torch.addcmul(self.bias.view(per_seed), F.layer_norm(x, x.shape[-1:]), self.weight.view(per_seed))
