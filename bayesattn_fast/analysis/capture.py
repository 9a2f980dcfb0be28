"""What passes through a model on given inputs: queries, keys, values and outputs of attention, states of every block.

with captured(model) as seen:
    model(inputs)
seen.states[-1]     # (E, B, N, d) after the last block, before the final norm
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..models.sequence import SequenceModel
from ..models.transformer import Attention


@dataclass
class Captured:
    """One entry per block, in order, of the last forward pass; attention's are empty for other architectures.

    queries, keys, values (E, B, H, N, d/H); outputs (E, B, N, d): the heads' results side by side, before the output
    map; states (E, B, N, d): the residual stream after each block; final (E, B, P, d): after the last norm.
    """

    queries: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)
    final: Tensor | None = None


@contextmanager
def captured(model: SequenceModel) -> Iterator[Captured]:
    """Keep what forward passes inside the block compute; the last one wins."""
    seen, hooks = Captured(), []
    for i, block in enumerate(model.blocks):
        hooks.append(block.register_forward_hook(_keep(seen.states, i)))
        attention = getattr(block, "attn", None)
        if isinstance(attention, Attention):
            hooks.append(attention.qkv.register_forward_hook(_split(seen, i, attention.heads)))
            hooks.append(attention.out.register_forward_pre_hook(_input(seen.outputs, i)))

    def keep_final(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.final = output.detach()

    hooks.append(model.ln_final.register_forward_hook(keep_final))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _keep(into: dict[int, Tensor], layer: int) -> Any:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        into[layer] = output.detach()

    return hook


def _input(into: dict[int, Tensor], layer: int) -> Any:
    def hook(module: nn.Module, args: Any) -> None:
        into[layer] = args[0].detach()

    return hook


def _split(seen: Captured, layer: int, heads: int) -> Any:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        # (E, B, N, 3d) → three of (E, B, H, N, d/H), as the block does it
        parts = output.detach().unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5)
        seen.queries[layer], seen.keys[layer], seen.values[layer] = parts

    return hook
