"""½ erfc of the regression kernel, on its own."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesattn_fast.kernels.regression.forward import half_erfc


@triton.jit
def half_erfc_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, half_erfc(tl.load(x + at)))


def evaluate(x: Tensor) -> Tensor:
    """½ erfc x of a power of two of float64 numbers."""
    out = torch.empty_like(x)
    half_erfc_kernel[(1,)](x, out, BLOCK=len(x))
    return out
