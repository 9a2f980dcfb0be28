"""Forward selective scan on a GPU: h_t = exp(Δ_t A) h_{t−1} + Δ_t u_t B_t, y_t = C_t · h_t + D u_t, out = y silu(z).

One program walks the whole of one sequence for a few channels, with all their states in registers; nothing else of
size L × N exists. For the backward pass it leaves the state at the end of every chunk. The contract is reference.py's.
"""

# mypy: allow-untyped-defs, disable-error-code="assignment"
# The arguments of a jit function are tiles and views, which have no types of Python's; tuples grow in unrolled loops.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import launch
from .._triton.strided import Strided, store, strided, wide
from .problem import (
    LOG2E,
    STEPS,
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
from .reference import saved_states

# State values of a program, 32 threads: four a thread; with eight, 16-bit inputs spill.
ELEMENTS = 128


class Outputs(NamedTuple):
    """out (E, B, D, L); last_state (E, B, D, N), None unless asked for; states (E, B, K, N, D)."""

    out: Strided
    last_state: Strided | None
    states: Strided


@triton.jit
def forward_kernel(inputs, outputs, sizes, config: tl.constexpr):
    """A block of channels of one sequence."""
    place = place_of(tl.program_id(0) // sizes.blocks, sizes)
    tile = tile_of(place, tl.program_id(0) % sizes.blocks, sizes, config)
    A = parameters(inputs.A, place, tile) * LOG2E
    skip = per_channel(inputs.D, place, tile)
    bias = per_channel(inputs.delta_bias, place, tile)
    fixed_B = fixed_matrix(inputs.B, place, tile, config.fixed_B)
    fixed_C = fixed_matrix(inputs.C, place, tile, config.fixed_C)
    h = tl.full([config.block_n, config.block_d], 0.0, tl.float32)
    for start in range(0, sizes.length, STEPS):
        if (start % config.chunk == 0) & (start > 0):
            store(kept_rows(outputs.states, place, tile, start // config.chunk - 1), h, tile.live & tile.real)
        given = steps_at(inputs, place, tile, bias, start, sizes.length, config)
        ys = ()
        for i in tl.static_range(STEPS):
            B = matrix_at(inputs.B, fixed_B, place, tile, start + i, sizes.length, config.fixed_B)
            C = matrix_at(inputs.C, fixed_C, place, tile, start + i, sizes.length, config.fixed_C)
            h = decay_of(given.step[i], A) * h + given.step[i] * given.x[i] * B
            ys = ys + (tl.sum(h * C, 0, keep_dims=True) + skip * given.x[i],)  # noqa: RUF005
        store_out(inputs, outputs.out, place, tile, start, sizes.length, ys)
    if config.last_state:
        store(state_rows(outputs.last_state, place, tile), h, tile.live & tile.real)


@triton.jit
def store_out(inputs, view, place, tile, start, length, ys):
    """Gate and write STEPS steps."""
    if inputs.z is not None:
        gates = load_steps(inputs.z, place, tile, start, length)
    rows = rows_of(view, place, tile)
    for i in tl.static_range(STEPS):
        y = ys[i]
        if inputs.z is not None:
            y = y * gates[i] * tl.sigmoid(gates[i])
        store(rows + wide(start + i) * view.s3, y, tile.live & (start + i < length))


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
    """(out, last_state, states); the contract is reference.py's, for float32, bfloat16 and float16 on a CUDA device."""
    seeds, batch, channels, length = u.shape
    groups = group_count(B, C)
    given = (A, B, C, channels // groups, ELEMENTS, delta_softplus, want_last_state)
    settings, resources = tiling("forward", *given)
    blocks = triton.cdiv(channels // groups, settings.block_d)
    out = torch.empty_like(u)
    last = A.new_empty(seeds, batch, channels, settings.states) if want_last_state else A.new_empty(seeds, 0)
    states = A.new_empty(seeds, batch, saved_states(length), settings.states, channels)
    launch(
        forward_kernel,
        seeds * batch * groups * blocks,
        inputs(u, delta, A, B, C, D, z, delta_bias),
        Outputs(strided(out), strided(last) if want_last_state else None, strided(states)),  # type: ignore[arg-type]
        Sizes(batch, groups, channels // groups, length, blocks, 1),
        config=settings,
        resources=resources,
        device=u.device,
    )
    return out, last, states
