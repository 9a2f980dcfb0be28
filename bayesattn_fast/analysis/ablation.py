"""A model with parts switched off: single heads, the attention of layers, whole layers.

A head is zeroed before the output map, attention's branch is zeroed whole (its bias too), a layer becomes the identity.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..models.sequence import SequenceModel
from ..models.transformer import Attention


@contextmanager
def ablated(
    model: SequenceModel,
    *,
    heads: Iterable[tuple[int, int]] = (),
    attention: Iterable[int] = (),
    layers: Iterable[int] = (),
) -> Iterator[SequenceModel]:
    """The model with these parts off inside the block: heads as (layer, head), all counted from 0.

    ValueError where a layer or a head does not exist, or a layer has no attention.
    """
    hooks = []
    try:
        for layer, head in heads:
            hooks.append(_attention(model, layer, head).out.register_forward_pre_hook(_without(model, head)))
        for layer in attention:
            hooks.append(_attention(model, layer).register_forward_hook(_nothing))
        for layer in layers:
            hooks.append(_block(model, layer).register_forward_hook(_unchanged))
        yield model
    finally:
        for hook in hooks:
            hook.remove()


def _block(model: SequenceModel, layer: int) -> nn.Module:
    if not 0 <= layer < len(model.blocks):
        raise ValueError(f"layer must be in 0 … {len(model.blocks) - 1}; got {layer}")
    return model.blocks[layer]


def _attention(model: SequenceModel, layer: int, head: int = 0) -> Attention:
    found = getattr(_block(model, layer), "attn", None)
    if not isinstance(found, Attention):
        raise ValueError(f"layer {layer} of a {model.config.model} has no attention")
    if not 0 <= head < found.heads:
        raise ValueError(f"head must be in 0 … {found.heads - 1}; got {head}")
    return found


def _without(model: SequenceModel, head: int) -> Any:
    size = model.config.d_model // model.config.heads

    def hook(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        x = args[0].clone()
        x[..., head * size : (head + 1) * size] = 0.0
        return (x,)

    return hook


def _nothing(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.new_zeros(output.shape)


def _unchanged(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    return args[0]
