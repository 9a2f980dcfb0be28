"""LSTM block (Hochreiter & Schmidhuber 1997, with forget gates), residual and pre-norm, for every seed at once.

i, f, g, o = W x_t + U h_{t−1} + b;  c_t = σ(f) c_{t−1} + σ(i) tanh(g);  h_t = σ(o) tanh(c_t)
"""

import torch
from torch import Tensor, nn

from .ensemble import LayerNorm, Linear
from .sequence import ModelConfig


class LSTM(nn.Module):
    """x (E, B, N, d) → hidden states (E, B, N, d)."""

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.input, self.recurrent = Linear(seeds, width, 4 * width), Linear(seeds, width, 4 * width, bias=False)

    def reset_seeds(self, seeds: tuple[int, ...], name: str) -> None:
        """Forget gates start open (bias 1), so that gradients reach the first steps."""
        width = self.input.weight.shape[-1]
        assert self.input.bias is not None
        self.input.bias[:, width : 2 * width] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        seeds, batch, _, width = x.shape
        gates = self.input(x).unbind(2)
        weight = self.recurrent.weight.transpose(1, 2)
        hidden = cell = x.new_zeros(seeds, batch, width)
        states = []
        for gate in gates:
            i, f, g, o = torch.baddbmm(gate, hidden, weight).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, 2)


class LSTMBlock(nn.Module):
    """x + LSTM(norm x)."""

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        self.ln, self.lstm = LayerNorm(seeds, config.d_model), LSTM(seeds, config)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lstm(self.ln(x))
