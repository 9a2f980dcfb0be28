"""A stack of residual blocks that sees only its own position: the control that cannot use context (Paper I)."""

from torch import Tensor, nn

from .ensemble import LayerNorm
from .sequence import ModelConfig
from .transformer import MLP


class MLPBlock(nn.Module):
    """x + MLP(norm x) at every position apart."""

    needs_positions = True

    def __init__(self, seeds: int, config: ModelConfig) -> None:
        super().__init__()
        self.ln, self.mlp = LayerNorm(seeds, config.d_model), MLP(seeds, config)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.ln(x))
