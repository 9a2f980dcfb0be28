"""Backward selective scan on a GPU, by the reverse recurrence g_t = C_t dy_t + exp(Δ_{t+1} A) g_{t+1}, g = dL/dh.

One program walks one sequence from its end, for a few channels at a time. It recomputes each chunk from the state that
the forward pass left: once to find the state before every STEPS steps, and once more, STEPS steps at a time, to hold
those steps' states and decays in registers while it goes back over them. Sums over channels and sequences go to
partial results of their own and are added up in a fixed order: no atomics, so the bits do not vary.
"""

# mypy: allow-untyped-defs, disable-error-code="assignment"
# The arguments of a jit function are tiles and views, which have no types of Python's; tuples grow in unrolled loops.

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import launch
from .._triton.strided import Strided, load, store, strided, wide
from .problem import (
    LOG2E,
    STEPS,
    TILES,
    Sizes,
    decay_of,
    fixed_matrix,
    group_count,
    inputs,
    kept_rows,
    load_steps,
    matrix_at,
    parameters,
    per_channel,
    place_of,
    rows_of,
    state_rows,
    steps_at,
    tile_of,
    tiling,
)
from .reference import Gradients

# State values of a program, 32 threads: two a thread, for each of which eight steps are held.
ELEMENTS = 64
# Programs that fill a GPU. Below that, the channels of a sequence are split over several, each with a dB and dC.
PROGRAMS = 2048
LN2 = tl.constexpr(0.6931471805599453)


class Upstream(NamedTuple):
    """dout (E, B, D, L); dlast_state (E, B, D, N) or None; states (E, B, K, N, D) of the forward pass."""

    dout: Strided
    dlast_state: Strided | None
    states: Strided


class Outputs(NamedTuple):
    """du, ddelta, dz (E, B, D, L); dB, dC (S, E, B · G, L, N) a partial sum a split, None if fixed.

    sums (E, B, R, D), over time alone: N rows of dA, one of dD, one of ddelta_bias, N each of fixed dB and dC.
    scratch (programs, TILES, states, channels): the states inside the chunk that a program is in.
    """

    du: Strided
    ddelta: Strided
    dz: Strided | None
    dB: Strided | None
    dC: Strided | None
    sums: Strided
    scratch: Any


class Job(NamedTuple):
    """A block of channels of one sequence: where it is, and its parameters.

    A (states, channels) in units of log 2; skip, bias (channels); fixed B and C (states, channels).
    split is the part of dB and dC it belongs to; adding: an earlier block has written them.
    """

    inputs: Any
    upstream: Any
    outputs: Any
    length: Any
    place: Any
    tile: Any
    A: Any
    skip: Any
    bias: Any
    B: Any
    C: Any
    split: Any
    adding: Any


class Held(NamedTuple):
    """What is kept of STEPS steps, a tuple each: decays, the state after each (and, first, before all)."""

    decays: Any
    states: Any


class Totals(NamedTuple):
    """Sums over time: dA, fixed dB and dC (states, channels), dD and ddelta_bias (channels)."""

    dA: Any
    dB: Any
    dC: Any
    dD: Any
    dbias: Any


@triton.jit
def backward_kernel(inputs, upstream, outputs, sizes, config: tl.constexpr):
    """One split of the channels of one sequence, block by block."""
    split = tl.program_id(0) % sizes.splits
    place = place_of(tl.program_id(0) // sizes.splits, sizes)
    first = sizes.blocks * split // sizes.splits
    for block in range(first, sizes.blocks * (split + 1) // sizes.splits):
        tile = tile_of(place, block, sizes, config)
        job = Job(
            inputs,
            upstream,
            outputs,
            sizes.length,
            place,
            tile,
            parameters(inputs.A, place, tile) * LOG2E,
            per_channel(inputs.D, place, tile),
            per_channel(inputs.delta_bias, place, tile),
            fixed_matrix(inputs.B, place, tile, config.fixed_B),
            fixed_matrix(inputs.C, place, tile, config.fixed_C),
            split,
            block > first,
        )
        zero = tl.full([config.block_n, config.block_d], 0.0, tl.float32)
        none = tl.full([1, config.block_d], 0.0, tl.float32)
        totals = Totals(zero, zero, zero, none, none)
        carry = zero
        if upstream.dlast_state is not None:
            carry = load(state_rows(upstream.dlast_state, place, tile), tile.live & tile.real)
        chunks = tl.cdiv(sizes.length, config.chunk)
        for back in range(chunks):
            carry, totals = chunk_back(job, carry, totals, chunks - 1 - back, config)
        store_totals(outputs.sums, place, tile, totals, config)
        # The next block adds to the dB and dC that this one wrote.
        tl.debug_barrier()


@triton.jit
def chunk_back(job, carry, totals, chunk, config: tl.constexpr):
    """One chunk: forward from the kept state, then back."""
    start = chunk * config.chunk
    tile = job.tile
    h = load(kept_rows(job.upstream.states, job.place, tile, chunk - 1), tile.live & tile.real & (chunk > 0))
    tiles = tl.cdiv(tl.minimum(config.chunk, job.length - start), STEPS)
    # The state before each of the chunk's groups of STEPS steps.
    tl.store(scratch_rows(job, 0, config), h)
    for j in range(1, tiles):
        h = advance(job, h, start + (j - 1) * STEPS, config)
        tl.store(scratch_rows(job, j, config), h)
    for j in range(tiles):
        at = tiles - 1 - j
        h = tl.load(scratch_rows(job, at, config))
        carry, totals = steps_back(job, carry, totals, h, start + at * STEPS, config)
    return carry, totals


@triton.jit
def scratch_rows(job, index, config: tl.constexpr):
    """(states, channels) pointers to one of the states that a program sets aside; each thread reads its own back."""
    size: tl.constexpr = config.block_n * config.block_d
    start = job.outputs.scratch + (wide(tl.program_id(0)) * TILES + index) * size
    return start + job.tile.states * config.block_d + job.tile.within


@triton.jit
def advance(job, h, start, config: tl.constexpr):
    """The state STEPS steps on."""
    given = steps_at(job.inputs, job.place, job.tile, job.bias, start, job.length, config)
    for i in tl.static_range(STEPS):
        B = B_at(job, start + i, config)
        h = decay_of(given.step[i], job.A) * h + given.step[i] * given.x[i] * B
    return h


@triton.jit
def B_at(job, time, config: tl.constexpr):
    return matrix_at(job.inputs.B, job.B, job.place, job.tile, time, job.length, config.fixed_B)


@triton.jit
def C_at(job, time, config: tl.constexpr):
    return matrix_at(job.inputs.C, job.C, job.place, job.tile, time, job.length, config.fixed_C)


@triton.jit
def hold(job, given, h, start, config: tl.constexpr):
    """STEPS steps forward from h, all decays and states kept."""
    decays = ()
    states = (h,)
    for i in tl.static_range(STEPS):
        decay = decay_of(given.step[i], job.A)
        h = decay * h + given.step[i] * given.x[i] * B_at(job, start + i, config)
        decays = decays + (decay,)  # noqa: RUF005
        states = states + (h,)  # noqa: RUF005
    return Held(decays, states)


@triton.jit
def steps_back(job, carry, totals, h, start, config: tl.constexpr):
    """STEPS steps forward from h, then back from carry = exp(Δ A) g of the step after them."""
    given = steps_at(job.inputs, job.place, job.tile, job.bias, start, job.length, config)
    dys = load_steps(job.upstream.dout, job.place, job.tile, start, job.length)
    if job.inputs.z is not None:
        gates = load_steps(job.inputs.z, job.place, job.tile, start, job.length)
    held = hold(job, given, h, start, config)
    dA, dB_sum, dC_sum, dD, dbias = totals.dA, totals.dB, totals.dC, totals.dD, totals.dbias
    for i in tl.static_range(STEPS - 1, -1, -1):
        time, step, x, dy = start + i, given.step[i], given.x[i], dys[i]
        C, state = C_at(job, time, config), held.states[i + 1]
        if job.inputs.z is not None:
            gate, sigmoid = gates[i], tl.sigmoid(gates[i])
            y = tl.sum(state * C, 0, keep_dims=True) + job.skip * x
            store_step(job.outputs.dz, job, time, dy * y * sigmoid * (1.0 + gate * (1.0 - sigmoid)))
            dy = dy * gate * sigmoid
        B = B_at(job, time, config)
        g = dy * C + carry
        g_B = tl.sum(g * B, 0, keep_dims=True)
        carry = g * held.decays[i]
        through_decay = carry * held.states[i]
        dA += through_decay * step
        # A is in units of log 2.
        ddelta = (tl.sum(through_decay * job.A, 0, keep_dims=True) * LN2 + x * g_B) * given.slope[i]
        store_step(job.outputs.ddelta, job, time, ddelta)
        store_step(job.outputs.du, job, time, step * g_B + job.skip * dy)
        dD += dy * x
        dbias += tl.where(time < job.length, ddelta, 0.0)
        dB, dC = step * x * g, dy * state
        if config.fixed_B:
            dB_sum += dB
        else:
            add_matrix(job.outputs.dB, job, time, dB, config)
        if config.fixed_C:
            dC_sum += dC
        else:
            add_matrix(job.outputs.dC, job, time, dC, config)
    return carry, Totals(dA, dB_sum, dC_sum, dD, dbias)


@triton.jit
def store_step(view, job, time, values):
    """(1, channels) of one step of an (E, B, D, L) tensor."""
    store(rows_of(view, job.place, job.tile) + wide(time) * view.s3, values, job.tile.live & (time < job.length))


@triton.jit
def add_matrix(view, job, time, terms, config: tl.constexpr):
    """Sum over channels for one step of a partial dB or dC: the first block of a split writes it, the others add."""
    tile = job.tile
    values = tl.sum(terms, 1, keep_dims=True)
    pointers = view.pointer + wide(job.split) * view.s0 + job.place.seed * view.s1 + job.place.batch * view.s2
    pointers += job.place.group * view.s3 + wide(time) * config.states + tile.states
    mask = tile.real & (time < job.length)
    store(pointers, values + load(pointers, mask & job.adding), mask)


@triton.jit
def store_totals(view, place, tile, totals, config: tl.constexpr):
    """One column of the sums over time for every channel."""
    columns = view.pointer + place.seed * view.s0 + place.batch * view.s1 + tile.channels
    rows, both = columns + tile.states * view.s2, tile.live & tile.real
    store(rows, totals.dA, both)
    store(columns + config.states * view.s2, totals.dD, tile.live)
    store(columns + (config.states + 1) * view.s2, totals.dbias, tile.live)
    if config.fixed_B:
        store(rows + (config.states + 2) * view.s2, totals.dB, both)
    if config.fixed_C:
        past_B: tl.constexpr = config.states + 2 + config.states * config.fixed_B
        store(rows + past_B * view.s2, totals.dC, both)


def _partial(matrix: Tensor, splits: int, sequences: tuple[int, int], length: int) -> Tensor | None:
    """Room for a dB or dC a split: (S, E, B, G, L, N), states next to each other; None for a fixed matrix."""
    if matrix.dim() == 3:
        return None
    return matrix.new_empty(splits, *sequences, matrix.shape[2], length, matrix.shape[3], dtype=torch.float32)


def _total(partial: Tensor, like: Tensor) -> Tensor:
    """Splits added up in order: (E, B, G, N, L)."""
    whole = partial[0] if partial.shape[0] == 1 else partial.sum(0)
    return whole.transpose(-1, -2).to(like.dtype).contiguous()


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
    groups, count = group_count(B, C), A.shape[-1]
    settings, resources = tiling("backward", A, B, C, channels // groups, ELEMENTS, delta_softplus, False)
    blocks = triton.cdiv(channels // groups, settings.block_d)
    splits = min(blocks, triton.cdiv(PROGRAMS, seeds * batch * groups))
    programs = seeds * batch * groups * splits
    du, ddelta = torch.empty_like(u), torch.empty_like(delta)
    dz = None if z is None else torch.empty_like(z)
    dB, dC = (_partial(matrix, splits, (seeds, batch), length) for matrix in (B, C))
    parts = [count, 1, 1, count * settings.fixed_B, count * settings.fixed_C]
    sums = A.new_empty(seeds, batch, sum(parts), channels)
    launch(
        backward_kernel,
        programs,
        inputs(u, delta, A, B, C, D, z, delta_bias),
        Upstream(strided(dout), strided(dlast_state), strided(states)),  # type: ignore[arg-type]
        Outputs(
            strided(du),  # type: ignore[arg-type]
            strided(ddelta),  # type: ignore[arg-type]
            strided(dz),
            None if dB is None else strided(dB.flatten(4)),
            None if dC is None else strided(dC.flatten(4)),
            strided(sums),  # type: ignore[arg-type]
            A.new_empty(programs, TILES.value, settings.block_n, settings.block_d),
        ),
        Sizes(batch, groups, channels // groups, length, blocks, splits),
        config=settings,
        resources=resources,
        device=u.device,
    )
    # (E, B, R, D) → (E, D, R)
    dA, dD, dbias, fixed_B, fixed_C = (part.contiguous() for part in sums.sum(1).transpose(1, 2).split(parts, 2))
    return (
        du,
        ddelta,
        dA,
        fixed_B if dB is None else _total(dB, B),
        fixed_C if dC is None else _total(dC, C),
        None if D is None else dD.squeeze(2),
        dz,
        None if delta_bias is None else dbias.squeeze(2),
    )
