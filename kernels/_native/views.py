"""How tensors cross to the native kernels: a flat array of int64, seven numbers a tensor (struct View of lanes.h)."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 3}
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


def declare_sum_middle(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give `sum_middle` of sums.h its types in a library that includes it."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.sum_middle.argtypes = [pointer, integer, integer, integer, pointer, integer]
    library.sum_middle.restype = None
    return library


def sum_middle(library: ctypes.CDLL, partial: Tensor) -> Tensor:
    """Sum of a contiguous float32 tensor over axis 1, in order, whatever the number of threads."""
    if partial.shape[1] == 1:
        return partial.squeeze(1)
    total = partial.new_empty(partial.shape[0], *partial.shape[2:])
    outer, count = partial.shape[:2]
    library.sum_middle(partial.data_ptr(), outer, count, total[0].numel(), total.data_ptr(), torch.get_num_threads())
    return total
