"""Launches native.cpp: the scores of reference.py, its losses and their gradients, in float32 and float64."""

import ctypes
import functools
import struct
from pathlib import Path

import torch
from torch import Tensor

from bayesattn_fast.kernels._native import build
from bayesattn_fast.kernels._native.memory import fresh
from bayesattn_fast.kernels._native.problem import OUT_OF_RANGE, check, pointer

# The structs of native.cpp.
SCORE, LOSS = struct.Struct("=13q"), struct.Struct("=9q")


@functools.cache
def library() -> ctypes.CDLL:
    return build.load(Path(__file__).with_name("native.cpp"))


def score(logits: Tensor, p: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """The fields of reference.Scores; logits and p (…, C) of one dtype, targets (…) int64 in [0, C)."""
    inputs = logits.contiguous(), p.contiguous(), targets.contiguous()
    made = [logits.new_empty(targets.shape) for _ in range(7)]
    problem = SCORE.pack(*_sizes(logits), *map(pointer, (*inputs, *made)))
    _check(library().score(problem, _is_double(logits)), "score", logits, targets)
    return tuple(made)


def cross_entropy(logits: Tensor, p: Tensor | None, targets: Tensor | None) -> Tensor:
    """Losses (…) of logits (…, C): against p where it is given, else on targets."""
    losses = logits.new_empty(logits.shape[:-1])
    _loss(logits, p, targets, losses, None, None)
    return losses


def cross_entropy_backward(upstream: Tensor, logits: Tensor, p: Tensor | None, targets: Tensor | None) -> Tensor:
    """Gradient (…, C) of the losses in the logits, for the upstream gradient (…) of each."""
    gradient = fresh(torch.empty_like(logits, memory_format=torch.contiguous_format))
    _loss(logits, p, targets, None, upstream, gradient)
    return gradient


def _loss(logits: Tensor, p: Tensor | None, targets: Tensor | None, *rest: Tensor | None) -> None:
    losses, upstream, gradient = rest
    # Kept in a list: the addresses must stay alive.
    inputs = [None if x is None else x.contiguous() for x in (logits, p, targets, upstream)]
    problem = LOSS.pack(*_sizes(logits), *map(pointer, (*inputs[:3], losses, inputs[3], gradient)))
    _check(library().cross_entropy(problem, _is_double(logits)), "cross_entropy", logits, targets)


def _sizes(logits: Tensor) -> tuple[int, int, int]:
    classes = logits.shape[-1]
    return logits.numel() // classes, classes, torch.get_num_threads()


def _check(status: int, what: str, logits: Tensor, targets: Tensor | None) -> None:
    if check(status, what) & OUT_OF_RANGE and targets is not None:
        classes = logits.shape[-1]
        wrong = targets[(targets < 0) | (targets >= classes)].flatten()[0].item()
        raise IndexError(f"targets must lie in [0, {classes}); got {wrong}")


def _is_double(x: Tensor) -> ctypes.c_int64:
    return ctypes.c_int64(x.dtype == torch.float64)
