"""What the two Triton passes share: the arguments of a launch, and how a program reads its channels, steps and states.

A program holds a tile of states by channels: the states of a sequence's recurrence stay in registers while time is
walked STEPS at a time. The loads of STEPS steps come before the arithmetic of the first, so that they overlap.
"""

# mypy: allow-untyped-defs, disable-error-code="assignment"
# The arguments of a jit function are tiles and views, which have no types of Python's; tuples grow in unrolled loops.

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .._triton import softmax, table
from .._triton.launch import Resources, architecture
from .._triton.strided import Strided, load, strided, wide
from .reference import CHUNK

LOG2E = tl.constexpr(1.4426950408889634)
# Steps whose loads are issued together; in the backward pass, steps whose states are held in registers at once.
STEPS = tl.constexpr(8)
# Groups of STEPS steps in a chunk of the contract, between whose ends no state is kept.
TILES = tl.constexpr(CHUNK // STEPS.value)
# Most channels of a program: one a thread of a warp.
CHANNELS = 32


class Inputs(NamedTuple):
    """u, delta, z (E, B, D, L); A (E, D, N); B, C (E, D, N) or (E, B, G, N, L); D, delta_bias (E, D)."""

    u: Strided
    delta: Strided
    A: Strided
    B: Strided
    C: Strided
    D: Strided | None
    z: Strided | None
    delta_bias: Strided | None


class Sizes(NamedTuple):
    """Counts of one launch; per_group channels share B and C, in `blocks` tiles, which `splits` programs divide."""

    batch: int
    groups: int
    per_group: int
    length: int
    blocks: int
    splits: int


class Config(NamedTuple):
    """What the code depends on: N, the tile, the form of B and C, softplus, and which outputs are asked for."""

    states: int
    block_n: int
    block_d: int
    chunk: int
    softplus: bool
    fixed_B: bool
    fixed_C: bool
    last_state: bool


class Place(NamedTuple):
    """One program's sequence."""

    seed: Any
    batch: Any
    group: Any


class Tile(NamedTuple):
    """A program's channels (1, channels), as numbered in it and in all, and states (states, 1); which of each exist."""

    within: Any
    channels: Any
    live: Any
    states: Any
    real: Any


class Steps(NamedTuple):
    """Of each of STEPS steps, (1, channels): u, Δ and dΔ/d(delta)."""

    x: Any
    step: Any
    slope: Any


def inputs(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
) -> Inputs:
    """The eight tensors as one kernel argument."""
    return Inputs(*(strided(t) for t in (u, delta, A, B, C, D, z, delta_bias)))  # type: ignore[arg-type]


def group_count(B: Tensor, C: Tensor) -> int:
    """Groups of channels that share B or C; a fixed one puts no bound on it."""
    return next((matrix.shape[2] for matrix in (B, C) if matrix.dim() == 5), 1)


def tiling(
    kernel: str, A: Tensor, B: Tensor, C: Tensor, per_group: int, elements: int, softplus: bool, last_state: bool
) -> tuple[Config, Resources]:
    """Every state of as many channels as the table says; without a row of it, about `elements` state values."""
    states = A.shape[-1]
    block_n: int = triton.next_power_of_2(states)
    plain = table.Tile((min(max(1, elements // block_n), CHANNELS),), max(1, block_n // elements), 1, True)
    shape = f"{kernel}, {block_n} states"
    tile = table.tile("selective_scan", shape, architecture(A.device), ((1, CHANNELS),), plain)
    block_d = min(tile.blocks[0], triton.next_power_of_2(per_group))
    config = Config(states, block_n, block_d, CHUNK, softplus, B.dim() == 3, C.dim() == 3, last_state)
    return config, Resources(tile.warps, tile.stages or 1, 255 if tile.capped else None)


@triton.jit
def place_of(index, sizes):
    """The sequence of program `index` of seeds × batch × groups."""
    rest = index // sizes.groups
    return Place(wide(rest // sizes.batch), wide(rest % sizes.batch), wide(index % sizes.groups))


@triton.jit
def tile_of(place, block, sizes, config: tl.constexpr):
    """The channels of one block of the program's group, by all states."""
    # Always 0, which the compiler cannot see: of indices that it knows to be adjacent it would give a thread several at
    # once, in another arrangement for every tensor, and move the values between threads at every step. So all tensors
    # have one arrangement, with neighbouring channels in neighbouring threads.
    zero = tl.program_id(0) >> 31
    within = (tl.arange(0, config.block_d) ^ zero)[None, :]
    states = (tl.arange(0, config.block_n) ^ zero)[:, None]
    in_group = block * config.block_d + within
    channels = place.group * sizes.per_group + wide(in_group)
    return Tile(within, channels, in_group < sizes.per_group, wide(states), states < config.states)


@triton.jit
def parameters(view, place, tile):
    """(states, channels) of an (E, D, N) tensor."""
    pointers = view.pointer + place.seed * view.s0 + tile.channels * view.s1 + tile.states * view.s2
    return load(pointers, tile.live & tile.real)


@triton.jit
def per_channel(view, place, tile):
    """(1, channels) of an (E, D) tensor, 0 for an absent one."""
    if view is None:
        return tl.zeros_like(tile.channels).to(tl.float32)
    else:
        return load(view.pointer + place.seed * view.s0 + tile.channels * view.s1, tile.live)


@triton.jit
def rows_of(view, place, tile):
    """(1, channels) pointers to the first step of each channel of an (E, B, D, L) tensor."""
    return view.pointer + place.seed * view.s0 + place.batch * view.s1 + tile.channels * view.s2


@triton.jit
def load_steps(view, place, tile, time, length):
    """(1, channels) values of each of STEPS steps."""
    rows = rows_of(view, place, tile)
    values = ()
    for i in tl.static_range(STEPS):
        value = load(rows + wide(time + i) * view.s3, tile.live & (time + i < length))
        values = values + (value,)  # noqa: RUF005 (no starred tuples in Triton)
    return values


@triton.jit
def state_rows(view, place, tile):
    """(states, channels) pointers into an (E, B, D, N) tensor."""
    return rows_of(view, place, tile) + tile.states * view.s3


@triton.jit
def kept_rows(view, place, tile, index):
    """(states, channels) pointers to the state that was kept at the end of chunk `index`, (E, B, K, N, D)."""
    start = view.pointer + place.seed * view.s0 + place.batch * view.s1 + wide(index) * view.s2
    return start + tile.states * view.s3 + tile.channels * view.s4


@triton.jit
def matrix_at(view, fixed, place, tile, time, length, FIXED: tl.constexpr):
    """B or C at one step, for every channel (states, channels)."""
    if FIXED:
        return fixed
    else:
        start = (
            view.pointer + place.seed * view.s0 + place.batch * view.s1 + place.group * view.s2 + wide(time) * view.s4
        )
        # Every channel reads the same address: one access for all.
        return load(start + tile.states * view.s3 + tile.channels * 0, tile.real & tile.live & (time < length))


@triton.jit
def fixed_matrix(view, place, tile, FIXED: tl.constexpr):
    """A fixed B or C (states, channels); of one that varies nothing is read yet."""
    if FIXED:
        return parameters(view, place, tile)
    else:
        return 0.0


@triton.jit
def steps_at(inputs, place, tile, bias, time, length, config: tl.constexpr):
    """u and Δ from `time` on. A step past the end has Δ = 0 and u = 0: it leaves every state as it is."""
    x = load_steps(inputs.u, place, tile, time, length)
    raw = load_steps(inputs.delta, place, tile, time, length)
    sizes = ()
    slopes = ()
    for i in tl.static_range(STEPS):
        size, slope = step_size(raw[i] + bias, config.softplus)
        sizes = sizes + (tl.where(time + i < length, size, 0.0),)  # noqa: RUF005
        slopes = slopes + (slope,)  # noqa: RUF005
    return Steps(x, sizes, slopes)


@triton.jit
def step_size(raw, SOFTPLUS: tl.constexpr):
    """Δ and dΔ/d(delta); above 20, softplus(x) = x to the last bit of float32."""
    if SOFTPLUS:
        large = raw > 20.0
        size = tl.where(large, raw, softmax.log1p(tl.exp(tl.where(large, 0.0, raw))))
        return size, tl.where(large, 1.0, tl.sigmoid(raw))
    else:
        return raw, tl.zeros_like(raw) + 1.0


@triton.jit
def decay_of(step, A):
    """exp(Δ A), A in units of log 2."""
    return tl.exp2(step * A)
