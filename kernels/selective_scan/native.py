"""Launches native.cpp: allocates what the contract of reference.py asks for, and passes views of it."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from .._native import build
from .._native.memory import fresh
from .._native.views import declare_sum_middle, pack_sizes, pack_views, sum_middle
from .reference import CHUNK, Gradients, saved_states

# Sums are split into parts by shape alone: were it by the number of threads, results would depend on it. Parts of the
# batch cost a little memory; parts of the channels, for small batches, a copy of dB and dC each, so there are fewer.
RUNS, TASKS = 64, 16


@functools.cache
def _library() -> ctypes.CDLL:
    library = build.load(Path(__file__).with_name("native.cpp"))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.selective_scan_forward.argtypes = [pointer, pointer, integer]
    library.selective_scan_backward.argtypes = [pointer, pointer, integer, integer]
    library.selective_scan_forward.restype = library.selective_scan_backward.restype = None
    return declare_sum_middle(library)


def _groups(B: Tensor, C: Tensor) -> int:
    """Groups of channels that share B or C; a fixed one puts no bound on it."""
    return next((matrix.shape[2] for matrix in (B, C) if matrix.dim() == 5), 1)


def selective_scan_forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    want_last_state: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, last_state, states); the contract is reference.py's, for float32, bfloat16 and float16."""
    seeds, batch, channels, length = u.shape
    count = A.shape[-1]
    out = fresh(torch.empty_like(u))
    last = A.new_empty(seeds, batch, channels, count) if want_last_state else A.new_empty(seeds, 0)
    states = fresh(A.new_empty(seeds, batch, saved_states(length), count, channels))
    tensors = [u, delta, A, B, C, D, z, delta_bias, out, last if want_last_state else None, states]
    fixed = (int(B.dim() == 3), int(C.dim() == 3))
    sizes = pack_sizes(seeds, batch, channels, count, length, _groups(B, C), CHUNK, int(delta_softplus), *fixed, 1, 1)
    _library().selective_scan_forward(pack_views(tensors), sizes, torch.get_num_threads())
    return out, last, states


def _own(part: Tensor) -> Tensor:
    """A contiguous copy: outputs of an op must not share memory, and some slices are "contiguous" already."""
    return part.clone(memory_format=torch.contiguous_format)


def selective_scan_backward(
    dout: Tensor,
    dlast_state: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    states: Tensor,
) -> Gradients:
    """The eight gradients; the contract is reference.py's."""
    seeds, batch, channels, length = u.shape
    count, groups = A.shape[-1], _groups(B, C)
    lanes = _library().lane_count()
    blocks = -(-channels // groups // lanes)
    runs = min(batch, RUNS)
    splits = min(blocks, max(1, TASKS // (seeds * runs * groups)))
    du, ddelta = fresh(torch.empty_like(u)), fresh(torch.empty_like(delta))
    dz = None if z is None else fresh(torch.empty_like(z))
    partial_B, partial_C = (
        A.new_empty(1, splits, seeds, batch, groups, count, length) if matrix.dim() == 5 else None for matrix in (B, C)
    )
    # Sums over batch and time, per channel: dA, dD, ddelta_bias, then fixed dB and dC.
    parts = [count, 1, 1, count * (B.dim() == 3), count * (C.dim() == 3)]
    rows = A.new_zeros(seeds, runs, groups, blocks, sum(parts), lanes)
    tensors = [u, delta, A, B, C, D, z, delta_bias, dout, dlast_state, states, du, ddelta, dz]
    words = pack_views([*tensors, *(None if m is None else m[0, 0] for m in (partial_B, partial_C)), rows[0]])
    sizes = pack_sizes(
        *(seeds, batch, channels, count, length, groups, CHUNK, int(delta_softplus)),
        *(int(partial_B is None), int(partial_C is None), runs, splits),
    )
    _library().selective_scan_backward(words, sizes, sum(parts), torch.get_num_threads())
    # (E, G, blocks, rows, lanes) → (E, D, rows): the lanes beyond a group's last channel are dropped.
    per_channel = sum_middle(_library(), rows).transpose(3, 4).flatten(2, 3)[:, :, : channels // groups].flatten(1, 2)
    dA, dD, dbias, fixed_B, fixed_C = per_channel.split(parts, 2)
    varying_B, varying_C = (None if p is None else sum_middle(_library(), p)[0] for p in (partial_B, partial_C))
    return (
        du,
        ddelta,
        _own(dA),
        _own(fixed_B) if varying_B is None else varying_B.to(B.dtype),
        _own(fixed_C) if varying_C is None else varying_C.to(C.dtype),
        None if D is None else _own(dD[..., 0]),
        dz,
        None if delta_bias is None else _own(dbias[..., 0]),
    )
