"""vmap for ops whose tensors all lead with a seed axis: the mapped axis joins it, and no tensor is copied for that."""

from collections.abc import Sequence

import torch
from torch import Tensor


def in_layout_of(like: Tensor | None, result: Tensor) -> Tensor:
    """`result` in the layout that a fake kernel promises: that of torch.empty_like(like), contiguous without one."""
    promised = result.new_empty(result.shape) if like is None else torch.empty_like(like)
    return result if result.stride() == promised.stride() else promised.copy_(result)


def absent(like: Tensor) -> Tensor:
    """What an op returns in place of the gradient of an optional tensor that was not given."""
    return like.new_empty(like.shape[0], 0)


def fold(size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Move vmap's axis into the seed axis. What has no such axis is expanded: a stride of 0, not a copy."""
    folded: list[Tensor | None] = []
    for tensor, dim in zip(tensors, in_dims, strict=True):
        if tensor is not None:
            tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            tensor = tensor.flatten(0, 1)
        folded.append(tensor)
    return folded


def unfold(size: int, outputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Give outputs that lead with (size · E) their two axes back, and say where vmap's axis is."""
    return tuple(t.unflatten(0, (size, t.shape[0] // size)) for t in outputs), (0,) * len(outputs)


def expect(name: str, tensor: Tensor | None, shape: tuple[int, ...], letters: str) -> None:
    """Raise ValueError unless an optional tensor has `shape`.

    A seed axis that `letters` does not name and that fits is left out of the message: the public functions of one seed
    take tensors without it.
    """
    if tensor is None or tuple(tensor.shape) == shape:
        return
    given, named = tuple(tensor.shape), [letter for letter in letters.strip("()").split(",") if letter.strip()]
    if len(shape) > len(named):
        if given[:1] == shape[:1]:
            given, shape = given[1:], shape[1:]
        else:
            letters = f"(E, {letters[1:]}"
    raise ValueError(f"{name} must have shape {letters} = {shape}; got {given}")
