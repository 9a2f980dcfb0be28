"""Launches native.cpp: results of reference.py in float32 and float64, and the sampler of the tunnel."""

import ctypes
import functools
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayesattn_fast.kernels._native import build
from bayesattn_fast.kernels._native.problem import Draw, check, pointer

# The structs of native.cpp; that of the sampler follows the draw.
REGRESSION, SAMPLE = struct.Struct("=14q 2d"), struct.Struct("=9q 2d")


@functools.cache
def library() -> ctypes.CDLL:
    return build.load(Path(__file__).with_name("native.cpp"))


def regression(
    x: Tensor, y: Tensor, tau: float, sigma: float, edges: Sequence[float], validate: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """Mean and variance (R, L), predictive (R, L, C), entropy (R, L), log evidence (R,) and the status.

    x (R, L, d), y (R, L); edges: the C − 1 inner edges of the bins, equally spaced. REFUSED: validation
    found NaN or infinity.
    """
    rows, length, d = x.shape
    classes = len(edges) + 1
    inputs = x.contiguous(), y.contiguous(), torch.tensor(edges, dtype=torch.float64)
    mean, variance, entropy = (x.new_empty(rows, length) for _ in range(3))
    made = mean, variance, x.new_empty(rows, length, classes), entropy, x.new_empty(rows)
    sizes = (rows, length, d, classes, torch.get_num_threads(), validate)
    problem = REGRESSION.pack(*sizes, *map(pointer, (*inputs, *made)), tau, sigma)
    is_double = ctypes.c_int64(x.dtype == torch.float64)
    return *made, check(library().regression_predictive(problem, is_double), "regression_predictive")


def regression_sample(
    draw: Draw, pairs: int, dimensions: int, tau: float, sigma: float, edges: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs (R, 2L − 1, d + 3), targets (R, L), predictive (R, L, C) and entropy (R, L) of tunnels.Regression.

    edges (C − 1,) float64, equally spaced. Inputs and targets equal the reference's bit for bit; predictive and entropy
    lie within one float32 rounding of the reference's.
    """
    rows, classes = draw.rows, len(edges) + 1
    inputs = torch.empty(rows, 2 * pairs - 1, dimensions + 3)
    targets = torch.empty(rows, pairs, dtype=torch.int64)
    predictive, entropy = torch.empty(rows, pairs, classes), torch.empty(rows, pairs)
    problem = draw.pack() + SAMPLE.pack(
        *(pairs, dimensions, classes, torch.get_num_threads()),
        *map(pointer, (edges, inputs, targets, predictive, entropy)),
        *(tau, sigma),
    )
    check(library().regression_sample(problem), "regression_sample")
    return inputs, targets, predictive, entropy
