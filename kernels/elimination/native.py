"""Launches native.cpp: results of reference.py in float32 and float64, and the samplers of both tunnels."""

import ctypes
import functools
import struct
from pathlib import Path

import torch
from torch import Tensor

from bayesattn_fast.kernels._native import build
from bayesattn_fast.kernels._native.problem import Draw, check, pointer

# The structs of native.cpp; those of the samplers follow the draw.
BIJECTION, RECALL = struct.Struct("=9q"), struct.Struct("=11q")
BIJECTION_SAMPLE, RECALL_SAMPLE = struct.Struct("=10q"), struct.Struct("=10q")


@functools.cache
def library() -> ctypes.CDLL:
    return build.load(Path(__file__).with_name("native.cpp"))


def bijection(
    keys: Tensor, values: Tensor, symbols: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Predictive (R, L, V), entropy (R, L) and log evidence (R,); status as in kernels/_native/problem.py.

    OUT_OF_RANGE: a symbol is none, and the row's results are not made; IMPOSSIBLE: a pair contradicts an earlier one.
    """
    rows, length = keys.shape
    inputs = keys.contiguous(), values.contiguous()
    predictive = torch.empty(rows, length, symbols, dtype=dtype)
    entropy, evidence = torch.empty(rows, length, dtype=dtype), torch.empty(rows, dtype=dtype)
    made = predictive, entropy, evidence
    problem = BIJECTION.pack(*(rows, length, symbols, torch.get_num_threads()), *map(pointer, (*inputs, *made)))
    return *made, check(library().bijection_predictive(problem, _is_double(dtype)), "bijection_predictive")


def recall(
    stored_keys: Tensor,
    stored_values: Tensor,
    queries: Tensor,
    values: int,
    dtype: torch.dtype = torch.float64,
    validate: bool = True,
) -> tuple[Tensor, Tensor, int]:
    """Predictive (R, M, values) and entropy (R, M); the status is REFUSED for what is stored twice or has no answer."""
    rows, stored = stored_keys.shape
    inputs = [x.contiguous() for x in (stored_keys, stored_values, queries)]
    asked = queries.shape[1]
    predictive, entropy = torch.empty(rows, asked, values, dtype=dtype), torch.empty(rows, asked, dtype=dtype)
    sizes = (rows, stored, asked, values, torch.get_num_threads(), validate)
    problem = RECALL.pack(*sizes, *map(pointer, (*inputs, predictive, entropy)))
    return predictive, entropy, check(library().recall_predictive(problem, _is_double(dtype)), "recall_predictive")


def bijection_sample(
    draw: Draw, symbols: int, pairs: int, *, separator: bool, shared_symbols: bool, with_replacement: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens (R, N), targets (R, L), predictive (R, L, V), entropy (R, L) of tunnels.Bijection: reference's bits."""
    stride = 3 if separator else 2
    made = _batch(draw.rows, stride * (pairs - 1) + 1, pairs, symbols)
    sizes = (symbols, pairs, stride, shared_symbols, with_replacement, torch.get_num_threads())
    problem = draw.pack() + BIJECTION_SAMPLE.pack(*sizes, *map(pointer, made))
    check(library().bijection_sample(problem), "bijection_sample")
    return made


def recall_sample(
    draw: Draw, pairs: int, symbols: int, fillers: int, queries: int, *, p_unseen: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens (R, N), targets (R, M), predictive (R, M, V), entropy (R, M) of tunnels.Recall: the reference's bits."""
    length = 4 * pairs + fillers + 3 * queries + (queries - 1) * (fillers // 2)
    made = _batch(draw.rows, length, queries, symbols)
    unseen_below = int(p_unseen * 2**32) if p_unseen > 0 else -1
    sizes = (pairs, symbols, fillers, queries, unseen_below, torch.get_num_threads())
    problem = draw.pack() + RECALL_SAMPLE.pack(*sizes, *map(pointer, made))
    check(library().recall_sample(problem), "recall_sample")
    return made


def _batch(rows: int, length: int, scored: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    integers = torch.empty(rows, length, dtype=torch.int64), torch.empty(rows, scored, dtype=torch.int64)
    return *integers, torch.empty(rows, scored, classes), torch.empty(rows, scored)


def _is_double(dtype: torch.dtype) -> ctypes.c_int64:
    return ctypes.c_int64(dtype == torch.float64)
