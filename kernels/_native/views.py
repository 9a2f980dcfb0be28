"""How tensors cross to the native kernels: a flat array of int64, seven numbers a tensor (struct View of lanes.h)."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
AXES = 5


def pack_views(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_int64]:
    """Pointer, dtype code and five strides (in elements) of every tensor; zeros for an absent one."""
    words: list[int] = []
    for tensor in tensors:
        if tensor is None:
            words += [0] * (2 + AXES)
        else:
            strides = tensor.stride()
            words += [tensor.data_ptr(), CODES[tensor.dtype], *strides, *[0] * (AXES - len(strides))]
    return (ctypes.c_int64 * len(words))(*words)


def pack_sizes(*sizes: int) -> ctypes.Array[ctypes.c_int64]:
    """Sizes as the kernel's struct of int64 fields."""
    return (ctypes.c_int64 * len(sizes))(*sizes)
