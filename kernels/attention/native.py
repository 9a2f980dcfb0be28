"""Launches native.cpp: the contract of reference.py for float32, bfloat16 and float16 tensors on the CPU."""

import functools
import struct
from ctypes import CDLL
from pathlib import Path

import torch
from torch import Tensor

from .._native import build
from .._native.memory import fresh
from .layout import like_heads
from .results import AttentionBackward, AttentionForward, ColumnStatistics, RowStatistics

SOURCE = Path(__file__).with_name("native.cpp")
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# struct Problem of heads.h: 11 integers, the scale, 2 pointers, 8 tensors of 5, 2 planes of 4, 10 statistics.
LAYOUT = struct.Struct("=11q d 60q")
ABSENT_TENSOR, ABSENT_PLANE = (0,) * 5, (0,) * 4


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    statistics: bool,
    tf32: bool = False,
) -> AttentionForward:
    """Softmax attention; the contract of reference.py."""
    o, lse = fresh(like_heads(q, v.shape[-1])), _plane_of(q, q.shape[2])
    entropy = max_weight = argmax = None
    if statistics:
        entropy, max_weight = _plane_of(q, q.shape[2]), _plane_of(q, q.shape[2])
        argmax = _plane_of(q, q.shape[2], torch.int32)
    _run(
        _library().attention_forward,
        (q, k, v, causal, scale, lengths, query_lengths, statistics),
        (_tensor(o), ABSENT_TENSOR, ABSENT_TENSOR, ABSENT_TENSOR, ABSENT_TENSOR),
        (_plane(lse), ABSENT_PLANE),
        (entropy, max_weight, argmax, *(None,) * 7),
    )
    return AttentionForward(o, lse, entropy, max_weight, argmax)


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    u: Tensor,
    *,
    dlse: Tensor | None = None,
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    statistics: bool,
    tf32: bool = False,
) -> AttentionBackward:
    """Gradients and their statistics; the contract of reference.py. o is not read: E comes from the weights."""
    dq, dk, dv = (fresh(like_heads(x, x.shape[-1])) for x in (q, k, v))
    rows = columns = None
    if statistics:
        rows = RowStatistics(*(_plane_of(q, q.shape[2]) for _ in range(3)))
        columns = ColumnStatistics(*(_plane_of(q, k.shape[2]) for _ in range(4)))
    _run(
        _library().attention_backward,
        (q, k, v, causal, scale, lengths, query_lengths, statistics),
        (ABSENT_TENSOR, _tensor(u), _tensor(dq), _tensor(dk), _tensor(dv)),
        (_plane(lse), ABSENT_PLANE if dlse is None else _plane(dlse)),
        (*(None,) * 3, *(rows or (None,) * 3), *(columns or (None,) * 4)),
    )
    return AttentionBackward(dq, dk, dv, rows, columns)


@functools.cache
def _library() -> CDLL:
    return build.load(SOURCE)


def _plane_of(q: Tensor, positions: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return q.new_empty((*q.shape[:2], positions), dtype=dtype)


def _tensor(x: Tensor) -> tuple[int, ...]:
    return (x.data_ptr(), *x.stride())


def _plane(x: Tensor) -> tuple[int, ...]:
    if x.dtype != torch.float32:
        raise TypeError(f"lse and its gradient must be float32; got {x.dtype}")
    return (x.data_ptr(), *x.stride())


def _run(function, inputs, tensors, planes, statistics) -> None:  # type: ignore[no-untyped-def]
    q, k, v, causal, scale, lengths, query_lengths, with_statistics = inputs
    lengths, query_lengths = (None if x is None else x.to(torch.int32).contiguous() for x in (lengths, query_lengths))
    batch, heads, queries, width = q.shape
    sizes = (batch, heads, k.shape[1], queries, k.shape[2], width, v.shape[3], causal, with_statistics)
    problem = LAYOUT.pack(
        TYPES[q.dtype],
        *sizes,
        torch.get_num_threads(),
        scale,
        *(0 if x is None else x.data_ptr() for x in (lengths, query_lengths)),
        *_tensor(q),
        *_tensor(k),
        *_tensor(v),
        *(number for tensor in tensors for number in tensor),
        *(number for plane in planes for number in plane),
        *(0 if x is None else x.data_ptr() for x in statistics),
    )
    if function(problem):
        raise MemoryError(f"attention could not allocate its scratch memory for {k.shape[2]} keys")
