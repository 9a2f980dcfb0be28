"""Models of sequences, each an ensemble over seeds: `build(config, tunnel, seeds)`; `register_model` adds your own."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from ..tunnels.protocol import Tunnel
from .ensemble import Embedding, LayerNorm, Linear
from .lstm import LSTMBlock
from .mamba import Mamba, MambaBlock
from .mlp import MLPBlock
from .per_seed import PerSeed
from .sequence import BlockFactory, ModelConfig, SequenceModel
from .transformer import TransformerBlock, value_rows

BLOCKS: dict[str, BlockFactory] = {
    "transformer": TransformerBlock,
    "mamba": MambaBlock,
    "lstm": LSTMBlock,
    "mlp": MLPBlock,
}
_BUILT_IN = frozenset(BLOCKS)
Block = TypeVar("Block", bound=BlockFactory)


def register_model(name: str) -> Callable[[Block], Block]:
    """Make a model of your own known by `name`, as a decorator of its residual block.

    The block is called as block(E, ModelConfig) and makes a module x (E, B, N, d) → (E, B, N, d) whose parameters all
    begin with the seed axis E; `Linear`, `LayerNorm` and `PerSeed` have it. A class attribute needs_positions = True
    adds learned positions to the inputs. Doing it again under the same name replaces the block, as a notebook does.
    Raises ValueError for a built-in's name.
    """
    if name in _BUILT_IN:
        raise ValueError(f"the model {name!r} comes with the package; choose another name")

    def add(block: Block) -> Block:
        BLOCKS[name] = block
        return block

    return add


def build(config: ModelConfig, tunnel: Tunnel, seeds: Sequence[int]) -> SequenceModel:
    """The ensemble of `config.model` for one tunnel, with the initial weights of every seed."""
    if config.model not in BLOCKS:
        near = get_close_matches(config.model, BLOCKS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"model must be one of {', '.join(BLOCKS)}; got {config.model!r}{hint}")
    return SequenceModel(config, tunnel, seeds, BLOCKS[config.model])


__all__ = [
    "BLOCKS",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Mamba",
    "ModelConfig",
    "PerSeed",
    "SequenceModel",
    "build",
    "register_model",
    "value_rows",
]
