"""The frame that every model shares: inputs → embedding → residual blocks → norm → head over the answer alphabet.

inputs (E, B, N) tokens or (E, B, N, d_in) reals → logits (E, B, P, C) at the tunnel's P scored positions.
Module names follow TransformerLens (embed, pos_embed, blocks.0.attn, ln_final, unembed).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..tunnels.protocol import Tunnel
from .ensemble import Embedding, LayerNorm, Linear
from .initial import normal_weights, sinusoids


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model."""

    model: str = "transformer"
    """Architecture: transformer, mamba, lstm, mlp, or one that was registered."""
    layers: int = 2
    """Number of residual blocks."""
    d_model: int = 64
    """Width of the residual stream."""
    heads: int = 2
    """Attention heads (transformer only)."""
    max_length: int = 0
    """Rows of the learned positions (transformer, mlp); 0 means the tunnel's own length."""

    def __post_init__(self) -> None:
        for name in ("layers", "d_model", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.model == "transformer" and self.d_model % self.heads:
            raise ValueError(f"d_model must be a multiple of heads ({self.heads}); got {self.d_model}")
        if self.max_length < 0:
            raise ValueError(f"max_length must be 0 (the tunnel's length) or positive; got {self.max_length}")


BlockFactory = Callable[[int, ModelConfig], nn.Module]


class SequenceModel(nn.Module):
    """An ensemble of E models of one architecture, each with the weights of its own seed."""

    def __init__(self, config: ModelConfig, tunnel: Tunnel, seeds: Sequence[int], block: BlockFactory) -> None:
        super().__init__()
        self.config, self.seeds = config, tuple(seeds)
        self.rows = config.max_length or tunnel.length
        if self.rows < tunnel.length:
            raise ValueError(f"max_length must cover the tunnel's {tunnel.length} positions; got {config.max_length}")
        count, width = len(self.seeds), config.d_model
        self.embed: Embedding | Linear
        if tunnel.vocabulary is not None:
            self.embed = Embedding(count, tunnel.vocabulary, width)
        else:
            assert tunnel.input_size is not None
            self.embed = Linear(count, tunnel.input_size, width)
        # Recurrent models know their position; the others have to be told.
        told = getattr(block, "needs_positions", False)
        self.pos_embed = nn.Parameter(torch.empty(count, self.rows, width)) if told else None
        self.blocks = nn.ModuleList(block(count, config) for _ in range(config.layers))
        self.ln_final = LayerNorm(count, width)
        self.unembed = Linear(count, width, tunnel.classes)
        self.register_buffer("scored", torch.tensor(tunnel.positions), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights of every seed, drawn from its own stream: N(0, gain²/fan-in) for maps, N(0, 1) for symbols."""
        for name, module in self.named_modules():
            if isinstance(module, Linear):
                fan_in = module.weight.shape[-1]
                std = module.gain * fan_in**-0.5
                module.weight.copy_(normal_weights(self.seeds, name, tuple(module.weight.shape[1:]), std))
            elif isinstance(module, Embedding):
                module.weight.copy_(normal_weights(self.seeds, name, tuple(module.weight.shape[1:]), 1.0))
            elif hasattr(module, "reset_seeds"):
                module.reset_seeds(self.seeds, name)
        if self.pos_embed is not None:
            self.pos_embed.copy_(sinusoids(*self.pos_embed.shape[1:]))

    def parameter_count(self) -> int:
        """Trainable numbers of one seed."""
        return sum(parameter[0].numel() for parameter in self.parameters())

    def check_length(self, length: int) -> None:
        """ValueError where the learned positions do not reach `length`."""
        if self.pos_embed is not None and length > self.rows:
            raise ValueError(
                f"the inputs have {length} positions and the model has learned {self.rows}; "
                f"train it with max_length of at least {length}"
            )

    def forward(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits (E, B, P, C) at `positions` (the tunnel's scored ones by default)."""
        x = self.embed(inputs)
        length = x.shape[2]
        if self.pos_embed is not None:
            self.check_length(length)
            x = x + self.pos_embed[:, None, :length]
        for block in self.blocks:
            x = block(x)
        x = x.index_select(2, self.scored if positions is None else positions)
        return self.unembed(self.ln_final(x))
