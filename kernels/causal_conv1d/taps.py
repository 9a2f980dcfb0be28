"""What the two Triton passes of the convolution share: a tile of channels by positions, and reads of the past.

pre_t = bias + Σ_k weight_k x_{t−W+1+k}; the rules for initial states and sequence indices are reference.py's.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .._triton import table
from .._triton.launch import Resources, architecture
from .._triton.strided import Strided, load, strided, wide

# Channels by positions of a program where the table has no row.
PLAIN = table.Tile((16, 64), 4, 1)
# Least and largest of both.
BOUNDS = ((1, 128), (16, 512))


class Inputs(NamedTuple):
    """x (E, B, D, L); weight (E, D, W); bias (E, D); seq_idx (E, B, L); initial_states (E, B, D, W − 1)."""

    x: Strided
    weight: Strided
    bias: Strided | None
    seq_idx: Strided | None
    initial_states: Strided | None


class Sizes(NamedTuple):
    """Counts of one launch: batch, channels and their blocks, positions and theirs."""

    batch: int
    channels: int
    channel_blocks: int
    length: int
    time_blocks: int


class Config(NamedTuple):
    """W, whether SiLU follows, and the tile."""

    width: int
    silu: bool
    block_d: int
    block_t: int


class Tile(NamedTuple):
    """Where a program is: seed and batch, channels (channels, 1), which of them exist, and its block of positions."""

    seed: Any
    batch: Any
    channels: Any
    live: Any
    block: Any


def arguments(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None
) -> Inputs:
    """The tensors as one kernel argument."""
    return Inputs(*(strided(t) for t in (x, weight, bias, seq_idx, initial_states)))  # type: ignore[arg-type]


def tiling(kernel: str, x: Tensor, weight: Tensor, silu: bool, positions: int) -> tuple[Config, Sizes, Resources]:
    """Tile and counts for `positions` positions (those of x, and in the backward pass those before it)."""
    _, batch, channels, length = x.shape
    span = max(BOUNDS[1][0], triton.next_power_of_2(positions))
    layout = "channel-first" if x.stride(3) == 1 else "channel-last"
    shape = f"{kernel}, {layout}, {min(span, BOUNDS[1][1])} positions"
    tile = table.tile("causal_conv1d", shape, architecture(x.device), BOUNDS, PLAIN)
    config = Config(weight.shape[-1], silu, tile.blocks[0], min(tile.blocks[1], span))
    blocks = triton.cdiv(channels, config.block_d), triton.cdiv(positions, config.block_t)
    sizes = Sizes(batch, channels, blocks[0], length, blocks[1])
    return config, sizes, Resources(tile.warps, tile.stages or 1, 255 if tile.capped else None)


@triton.jit
def tile_of(index, sizes, config: tl.constexpr):
    """The tile of program `index` of seeds × batch × channel blocks × time blocks."""
    block = index % sizes.time_blocks
    rest = index // sizes.time_blocks
    channels = rest % sizes.channel_blocks * config.block_d + tl.arange(0, config.block_d)[:, None]
    sequence = rest // sizes.channel_blocks
    live = channels < sizes.channels
    return Tile(wide(sequence // sizes.batch), wide(sequence % sizes.batch), wide(channels), live, block)


@triton.jit
def tap_weight(inputs, tile, k):
    """(channels, 1): weight_k of every channel."""
    view = inputs.weight
    return load(view.pointer + tile.seed * view.s0 + tile.channels * view.s1 + k * view.s2, tile.live)


@triton.jit
def signal_rows(view, tile):
    """(channels, 1) pointers to the first position of every channel of an (E, B, D, L) tensor."""
    return view.pointer + tile.seed * view.s0 + tile.batch * view.s1 + tile.channels * view.s2


@triton.jit
def x_at(inputs, tile, times, length, config: tl.constexpr):
    """(channels, positions): x, before its start the initial state, 0 where there is neither."""
    rows = signal_rows(inputs.x, tile)
    inside = (times >= 0) & (times < length)
    x = load(rows + wide(times) * inputs.x.s3, inside & tile.live)
    if inputs.initial_states is not None:
        view = inputs.initial_states
        past = times + (config.width - 1)
        x += load(signal_rows(view, tile) + wide(past) * view.s3, (times < 0) & (past >= 0) & tile.live)
    return x


@triton.jit
def sequence_at(inputs, tile, times, length):
    """(1, positions): the sequence of every position; before the first that of the initial state, −1 for none."""
    view = inputs.seq_idx
    rows = view.pointer + tile.seed * view.s0 + tile.batch * view.s1
    if inputs.initial_states is not None:
        return tl.load(rows + wide(tl.maximum(times, 0)) * view.s2, mask=times < length, other=-1)
    else:
        return tl.load(rows + wide(times) * view.s2, mask=(times >= 0) & (times < length), other=-1)


@triton.jit
def reads(inputs, tile, times, tap_times, length):
    """(1, positions): whether a position may read another; positions outside every sequence read nothing."""
    inside = (times >= 0) & (times < length)
    if inputs.seq_idx is None:
        return inside
    else:
        own = sequence_at(inputs, tile, times, length)
        return inside & (own >= 0) & (own == sequence_at(inputs, tile, tap_times, length))


@triton.jit
def preactivation(inputs, tile, times, length, config: tl.constexpr):
    """(channels, positions): bias + Σ_k weight_k x_{t−W+1+k}; 0 outside every sequence."""
    WIDTH: tl.constexpr = config.width
    pre = tl.full([config.block_d, config.block_t], 0.0, tl.float32)
    if inputs.bias is not None:
        pre += load(inputs.bias.pointer + tile.seed * inputs.bias.s0 + tile.channels * inputs.bias.s1, tile.live)
    for k in tl.static_range(WIDTH):
        past = times - (WIDTH - 1) + k
        term = tap_weight(inputs, tile, k) * x_at(inputs, tile, past, length, config)
        pre += tl.where(reads(inputs, tile, times, past, length), term, 0.0)
    return tl.where(reads(inputs, tile, times, times, length), pre, 0.0)
