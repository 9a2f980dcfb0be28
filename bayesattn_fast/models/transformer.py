"""Pre-norm transformer block: x + attention(norm x), then x + MLP(norm x), causal, GELU, 4× MLP (Paper I)."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.attention import attention
from .ensemble import LayerNorm, Linear
from .sequence import ModelConfig


class Attention(nn.Module):
    """Causal multi-head attention of every seed: x (E, B, N, d) → (E, B, N, d)."""

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.d_model
        self.qkv = Linear(seeds, width, 3 * width)
        self.out = Linear(seeds, width, width, gain=(2 * config.layers) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        # (E, B, N, 3d) → three views (E·B, H, N, d/H); the kernel reads them through their strides, without a copy.
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).flatten(0, 1).permute(2, 0, 3, 1, 4)
        o = attention(q, k, v)
        return self.out(o.transpose(1, 2).flatten(2).view_as(x))


def value_rows(model: nn.Module) -> dict[str, slice]:
    """Which rows of which parameters make attention values, by the parameter's name; empty without attention.

    Rows are on the axis after the seeds, of qkv.weight (E, 3d, d) and qkv.bias (E, 3d): queries, keys, values.
    """
    found: dict[str, slice] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            width = module.qkv.weight.shape[1] // 3
            found |= {f"{name}.qkv.{part}": slice(2 * width, 3 * width) for part in ("weight", "bias")}
    return found


class MLP(nn.Module):
    """GELU network of one hidden layer, four times as wide."""

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(seeds, config.d_model, 4 * config.d_model)
        self.down = Linear(seeds, 4 * config.d_model, config.d_model, gain=(2 * config.layers) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class TransformerBlock(nn.Module):
    """One residual block."""

    needs_positions = True

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        self.ln1, self.attn = LayerNorm(seeds, config.d_model), Attention(seeds, config)
        self.ln2, self.mlp = LayerNorm(seeds, config.d_model), MLP(seeds, config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))
