"""Models of sequences, each an ensemble over seeds: `build(config, tunnel, seeds)`."""

from collections.abc import Sequence

from ..tunnels.protocol import Tunnel
from .lstm import LSTMBlock
from .mamba import Mamba, MambaBlock
from .mlp import MLPBlock
from .sequence import BlockFactory, ModelConfig, SequenceModel
from .transformer import TransformerBlock, value_rows

BLOCKS: dict[str, BlockFactory] = {
    "transformer": TransformerBlock,
    "mamba": MambaBlock,
    "lstm": LSTMBlock,
    "mlp": MLPBlock,
}


def build(config: ModelConfig, tunnel: Tunnel, seeds: Sequence[int]) -> SequenceModel:
    """The ensemble of `config.model` for one tunnel, with the initial weights of every seed."""
    if config.model not in BLOCKS:
        raise ValueError(f"model must be one of {', '.join(BLOCKS)}; got {config.model!r}")
    return SequenceModel(config, tunnel, seeds, BLOCKS[config.model])


__all__ = ["BLOCKS", "Mamba", "ModelConfig", "SequenceModel", "build", "value_rows"]
