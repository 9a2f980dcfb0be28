"""Forward causal convolution on a GPU: out_t = act(bias + Σ_k weight_k x_{t−W+1+k}). The contract is reference.py's.

One program computes a tile of channels by positions; neighbouring reads of x overlap and come from the cache.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import launch
from .._triton.strided import store, strided, wide
from .taps import arguments, preactivation, signal_rows, tile_of, tiling


@triton.jit
def forward_kernel(inputs, out, sizes, config: tl.constexpr):
    """A tile of channels by positions of one sequence."""
    tile = tile_of(tl.program_id(0), sizes, config)
    times = tile.block * config.block_t + tl.arange(0, config.block_t)[None, :]
    y = preactivation(inputs, tile, times, sizes.length, config)
    if config.silu:
        y = y * tl.sigmoid(y)
    store(signal_rows(out, tile) + wide(times) * out.s3, y, tile.live & (times < sizes.length))


def causal_conv1d_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, silu: bool
) -> Tensor:
    """out (E, B, D, L), for float32, bfloat16 and float16 on a CUDA device."""
    config, sizes, resources = tiling("forward", x, weight, silu, x.shape[-1])
    out = torch.empty_like(x)
    launch(
        forward_kernel,
        x.shape[0] * sizes.batch * sizes.channel_blocks * sizes.time_blocks,
        arguments(x, weight, bias, seq_idx, initial_states),
        strided(out),
        sizes,
        config=config,
        resources=resources,
        device=x.device,
    )
    return out
