"""Whether the native or the Triton kernels serve a call, and what the status of the native ones means."""

import torch
from torch import Tensor

from bayesattn_fast.backends import resolve
from bayesattn_fast.kernels._native.problem import IMPOSSIBLE, OUT_OF_RANGE, REFUSED

NATIVE_DTYPES = (torch.float32, torch.float64)


def natively(op: str, *tensors: Tensor, differentiable: bool = False) -> bool:
    """True where the native kernels of `op` take these tensors.

    The reference serves other precisions, and calls that need a gradient where the kernels have none.
    """
    if resolve(op, tensors[0].device) != "cpu":
        return False
    if any(x.is_floating_point() and x.dtype not in NATIVE_DTYPES for x in tensors):
        return False
    return differentiable or not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))


def by_triton(op: str, *tensors: Tensor) -> bool:
    """True where the Triton kernels of `op` take these tensors: none floats but in float32, and no gradient wanted."""
    if resolve(op, tensors[0].device) != "triton":
        return False
    if any(x.is_floating_point() and x.dtype != torch.float32 for x in tensors):
        return False
    return not ((torch.is_grad_enabled() and any(x.requires_grad for x in tensors)) or _transforming())


def _transforming() -> bool:
    """torch.compile and torch.func would have to see into a launch."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def accepted(status: int, *, validate: bool, allow_impossible: bool = True) -> bool:
    """False where a kernel met something to refuse: the reference then runs, and its checks name what and where."""
    refused = OUT_OF_RANGE | (REFUSED if validate else 0) | (IMPOSSIBLE if validate and not allow_impossible else 0)
    return not status & refused
