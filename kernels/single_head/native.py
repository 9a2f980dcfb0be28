"""Launches native.cpp: allocates what the contract of reference.py asks for, and passes pointers and sizes."""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .._native import build
from .reference import HeadStep, Statistics, WeightStep, unfilled


@functools.cache
def _library() -> ctypes.CDLL:
    library = build.load(Path(__file__).with_name("native.cpp"))
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.attention_cross_entropy.argtypes = library.single_head_step.argtypes = [pointer, pointer, real, integer]
    library.train_single_head.argtypes = [pointer, pointer, real, integer, integer, real, integer]
    for function in (library.attention_cross_entropy, library.single_head_step, library.train_single_head):
        function.restype = None
    return library


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))


def _sizes(*sizes: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(sizes))(*sizes)


def attention_cross_entropy(
    q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, causal: bool, scale: float, statistics: bool
) -> HeadStep:
    """The contract of reference.py for float32; memory linear in N."""
    q, k, v, w_out, targets = (t.contiguous() for t in (q, k, v, w_out, targets))
    seeds, batch, length, head = q.shape
    values, classes = w_out.shape[1:]
    loss = q.new_empty(seeds, batch, dtype=torch.float64)
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    dw_out = q.new_empty(seeds, batch, values, classes)
    rows = indices = columns = None
    if statistics:
        rows, columns = q.new_empty(seeds, batch, 8, length), q.new_empty(seeds, batch, 3, length)
        indices = torch.empty(seeds, batch, 2, length, dtype=torch.int64)
    sizes = _sizes(seeds, batch, length, 0, head, values, classes, int(causal), int(targets.dim() == 4))
    tensors = [q, k, v, w_out, targets, loss, dq, dk, dv, dw_out, rows, indices, columns]
    _library().attention_cross_entropy(_pointers(tensors), sizes, scale, torch.get_num_threads())
    found = None
    if rows is not None and indices is not None and columns is not None:
        found = Statistics._make([*rows.unbind(2), *indices.unbind(2), *columns.unbind(2), dv.norm(dim=-1)])
    return HeadStep(loss.mean(1).to(q.dtype), dq, dk, dv, dw_out.sum(1), found)


def single_head_step(
    x: Tensor, targets: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_out: Tensor, causal: bool, scale: float
) -> WeightStep:
    """The contract of reference.py for float32."""
    tensors = [t.contiguous() for t in (x, targets, w_q, w_k, w_v, w_out)]
    loss = x.new_empty(len(x), dtype=torch.float64)
    gradients = [torch.empty_like(t) for t in tensors[2:]]
    sizes = _weight_sizes(tensors, causal)
    _library().single_head_step(_pointers([*tensors, loss, *gradients]), sizes, scale, torch.get_num_threads())
    return WeightStep(loss.to(x.dtype), *gradients)


def train_single_head(
    x: Tensor,
    targets: Tensor,
    weights: Sequence[Tensor],
    rates: Tensor,
    steps: int,
    every: int,
    limit: float,
    held_out: tuple[Tensor, Tensor] | None,
    causal: bool,
    scale: float,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The contract of reference.py for float32: one thread trains one seed."""
    data = [x.contiguous(), targets.contiguous()]
    fresh = [t.contiguous() for t in held_out] if held_out else [None, None]
    trained = [w.clone(memory_format=torch.contiguous_format) for w in weights]
    rates = rates.to(x.dtype).contiguous()
    loss, records = unfilled(x, steps, every)
    pointers = _pointers([*data, *trained, rates, loss, records, *fresh])
    sizes = _weight_sizes([*data, *trained], causal)
    _library().train_single_head(pointers, sizes, scale, steps, every, limit, torch.get_num_threads())
    return trained, loss, records


def _weight_sizes(tensors: Sequence[Tensor], causal: bool) -> ctypes.Array[ctypes.c_int64]:
    x, targets, w_q, _, w_v, w_out = tensors
    seeds, batch, length, inputs = x.shape
    soft = int(targets.dim() == 4)
    return _sizes(seeds, batch, length, inputs, w_q.shape[-1], w_v.shape[-1], w_out.shape[-1], int(causal), soft)
