"""Backward causal convolution on a GPU: dx_s = Σ_k weight_k dpre_{s+W−1−k}, dweight_k = Σ_t dpre_t x_{t−W+1+k}.

One program takes a tile of channels by positions, initial states (positions −W + 1 … −1) included, and recomputes the
dpre of the W positions that read each of its own. Its share of dweight and dbias goes to a place of its own, and the
shares are added up in a fixed order. The contract is reference.py's.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import launch
from .._triton.strided import Strided, load, store, strided, wide
from .reference import Gradients
from .taps import arguments, preactivation, reads, signal_rows, tap_weight, tile_of, tiling, x_at


class Outputs(NamedTuple):
    """dx (E, B, D, L); dinitial (E, B, D, W − 1) or None; sums (E, B · time blocks, W + 1, D), dbias last."""

    dx: Strided
    dinitial: Strided | None
    sums: Strided


@triton.jit
def backward_kernel(inputs, dout, outputs, sizes, config: tl.constexpr):
    """A tile of channels by positions of one sequence."""
    WIDTH: tl.constexpr = config.width
    tile = tile_of(tl.program_id(0), sizes, config)
    times = tile.block * config.block_t + tl.arange(0, config.block_t)[None, :]
    if outputs.dinitial is not None:
        times -= WIDTH - 1
    dx = tl.full([config.block_d, config.block_t], 0.0, tl.float32)
    dpre = dx
    for k in tl.static_range(WIDTH):
        later = times + (WIDTH - 1 - k)
        dpre = dpre_at(inputs, dout, tile, later, sizes.length, config)
        reaching = reads(inputs, tile, later, times, sizes.length)
        dx += tap_weight(inputs, tile, k) * tl.where(reaching, dpre, 0.0)
    store(
        signal_rows(outputs.dx, tile) + wide(times) * outputs.dx.s3,
        dx,
        tile.live & (times >= 0) & (times < sizes.length),
    )
    if outputs.dinitial is not None:
        past, view = times + (WIDTH - 1), outputs.dinitial
        store(signal_rows(view, tile) + wide(past) * view.s3, dx, tile.live & (times < 0))
    # The last dpre is that of the tile itself.
    store_sums(inputs, dpre, outputs.sums, tile, times, sizes, config)


@triton.jit
def dpre_at(inputs, dout, tile, times, length, config: tl.constexpr):
    """(channels, positions): dL/dpre, 0 outside every sequence."""
    inside = reads(inputs, tile, times, times, length)
    dpre = load(signal_rows(dout, tile) + wide(times) * dout.s3, inside & tile.live)
    if config.silu:
        pre = preactivation(inputs, tile, times, length, config)
        sigmoid = tl.sigmoid(pre)
        dpre *= sigmoid * (1.0 + pre * (1.0 - sigmoid))
    return tl.where(inside, dpre, 0.0)


@triton.jit
def store_sums(inputs, dpre, view, tile, times, sizes, config: tl.constexpr):
    """The tile's share of dweight and dbias."""
    WIDTH: tl.constexpr = config.width
    share = tile.batch * sizes.time_blocks + tile.block
    rows = view.pointer + tile.seed * view.s0 + share * view.s1 + tile.channels
    for k in tl.static_range(WIDTH):
        past = times - (WIDTH - 1) + k
        x = x_at(inputs, tile, past, sizes.length, config)
        term = tl.where(reads(inputs, tile, times, past, sizes.length), dpre * x, 0.0)
        store(rows + k * view.s2, tl.sum(term, 1, keep_dims=True), tile.live)
    store(rows + WIDTH * view.s2, tl.sum(dpre, 1, keep_dims=True), tile.live)


def causal_conv1d_backward(
    dout: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    silu: bool,
) -> Gradients:
    """(dx, dweight, dbias, dinitial_states), for float32, bfloat16 and float16 on a CUDA device."""
    seeds, batch, channels, length = x.shape
    width = weight.shape[-1]
    positions = length + (0 if initial_states is None else width - 1)
    config, sizes, resources = tiling("backward", x, weight, silu, positions)
    dx = torch.empty_like(x)
    dinitial = None if initial_states is None else initial_states.new_empty(initial_states.shape)
    sums = weight.new_empty(seeds, batch * sizes.time_blocks, width + 1, channels)
    launch(
        backward_kernel,
        seeds * batch * sizes.channel_blocks * sizes.time_blocks,
        arguments(x, weight, bias, seq_idx, initial_states),
        strided(dout),
        Outputs(strided(dx), strided(dinitial), strided(sums)),  # type: ignore[arg-type]
        sizes,
        config=config,
        resources=resources,
        device=x.device,
    )
    total = sums.sum(1)
    dbias = None if bias is None else total[:, width].clone()
    return dx, total[:, :width].transpose(1, 2).contiguous(), dbias, dinitial
