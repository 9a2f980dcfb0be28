"""Launches native.cpp; the contract is reference.py's, for float32, bfloat16 and float16 and widths 2 to 4."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from .._native import build
from .._native.memory import fresh
from .._native.views import declare_sum_middle, pack_sizes, pack_views, sum_middle
from .reference import Gradients

# Enough tasks for the threads of any usual machine; it must not depend on their number, or sums would.
TASKS = 64


@functools.cache
def _library() -> ctypes.CDLL:
    library = build.load(Path(__file__).with_name("native.cpp"))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.causal_conv1d_forward.argtypes = [pointer, pointer, integer]
    library.causal_conv1d_backward.argtypes = [pointer, pointer, pointer, integer]
    library.causal_conv1d_forward.restype = library.causal_conv1d_backward.restype = None
    return declare_sum_middle(library)


def causal_conv1d_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, silu: bool
) -> Tensor:
    """out (E, B, D, L)."""
    out = fresh(torch.empty_like(x))
    sizes = pack_sizes(*x.shape, weight.shape[-1], int(silu), 1)
    views = pack_views([x, weight, bias, seq_idx, initial_states, out])
    _library().causal_conv1d_forward(views, sizes, torch.get_num_threads())
    return out


def causal_conv1d_backward(
    dout: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
) -> Gradients:
    """(dx, dweight, dbias, dinitial_states)."""
    seeds, batch, channels, _ = x.shape
    lanes = _library().lane_count()
    width, blocks = weight.shape[-1], -(-channels // lanes)
    runs = min(batch, -(-TASKS // (seeds * blocks)))
    dx = fresh(torch.empty_like(x))
    dinitial = None if initial_states is None else initial_states.new_empty(initial_states.shape)
    rows = weight.new_zeros(seeds, runs, blocks, width + 1, lanes)
    sizes = pack_sizes(*x.shape, width, int(silu), runs)
    views = pack_views([x, weight, bias, seq_idx, initial_states, dout, dx, dinitial])
    _library().causal_conv1d_backward(views, sizes, rows.data_ptr(), torch.get_num_threads())
    # (E, blocks, W + 1, lanes) → (E, D, W + 1)
    per_channel = sum_middle(_library(), rows).transpose(2, 3).flatten(1, 2)[:, :channels]
    dweight, dbias = per_channel[..., :width].clone(memory_format=torch.contiguous_format), per_channel[..., width]
    return dx, dweight, None if bias is None else dbias.clone(memory_format=torch.contiguous_format), dinitial
