"""Which tiles a call gets, by kernel, arithmetic and head size, from the table of _triton/table.py.

Its rows for any architecture were chosen with the compiler (compile_only in _triton/compile.py): the largest tile that
compiles for compute capability 8.0, 9.0 and 10.0 with statistics and all masks, without spills and within 99 KiB of
shared memory. Statistics do not change the tiles, and so not the order of any sum but one: grouped heads then add up dv
head by head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .._triton import table
from .._triton.launch import Resources, architecture
from .problem import Config, padded

# Most queries and keys of a head that the one-launch backward pass takes; most keys that one forward tile holds.
WHOLE = 128
# Least and largest edge of a tile that may be tried: a product needs 16 on every side.
EDGES = (16, 256)


class Schedule(NamedTuple):
    """block_m queries by block_n keys at a time; whole: one tile holds every key of a head."""

    whole: bool
    block_m: int
    block_n: int
    resources: Resources


class BackwardSchedule(NamedTuple):
    """Tiles of the two backward kernels; rows is None where columns is whole and does it all."""

    rows: Schedule | None
    columns: Schedule


# Keys that one tile may be made to hold.
SPANS = (16, 32, 64, WHOLE)


def forward_schedule(q: Tensor, k: Tensor, v: Tensor, *, tf32: bool) -> Schedule:
    """The forward pass's tiles for these operands."""
    where = _where(q, v, tf32)
    return _whole("forward", where, q, k.shape[2]) or _tiled("forward", where, q)


def backward_schedule(q: Tensor, k: Tensor, v: Tensor, *, tf32: bool) -> BackwardSchedule:
    """The backward pass's tiles for these operands: one kernel for short heads that share no keys, else two."""
    where = _where(q, v, tf32)
    if q.shape[1] == k.shape[1] and q.shape[2] <= WHOLE:
        schedule = _whole("columns", where, q, k.shape[2])
        if schedule is not None:
            return BackwardSchedule(None, schedule)
    return BackwardSchedule(_tiled("rows", where, q), _tiled("columns", where, q))


def apply(config: Config, schedule: Schedule, queries: int, keys: int) -> Config:
    """`config` with the tiles of `schedule`. Raises ValueError where a tile said to be whole does not hold the keys."""
    if schedule.whole and schedule.block_n < keys:
        raise ValueError(
            f"schedule says one tile holds all keys, but its {schedule.block_n} columns are not {keys} keys"
        )
    single = schedule.whole and schedule.block_m >= queries
    return config._replace(whole=schedule.whole, single=single, block_m=schedule.block_m, block_n=schedule.block_n)


def _where(q: Tensor, v: Tensor, tf32: bool) -> str:
    """Arithmetic and padded head size: where in the table a call is.

    "half": float16 and bfloat16, on tensor cores. "tf32": float32 rounded for tensor cores. "ieee": float32 in full.
    """
    arithmetic = "half" if q.dtype != torch.float32 else "tf32" if tf32 else "ieee"
    return f"{arithmetic}, D {max(padded(q.shape[3]), padded(v.shape[3]))}"


def _tiled(kernel: str, where: str, q: Tensor) -> Schedule:
    tile = table.tile("attention", f"{kernel}, {where}", architecture(q.device), (EDGES, EDGES))
    return _schedule(tile, False, q)


def _whole(kernel: str, where: str, q: Tensor, keys: int) -> Schedule | None:
    """The first row whose tile holds all keys; None where a head is too wide or too long for any."""
    capability = architecture(q.device)
    for span in SPANS:
        shape = f"{kernel}, {where}, {span} keys"
        if keys <= span and table.find("attention", shape, capability):
            return _schedule(table.tile("attention", shape, capability, (EDGES, (span, span))), True, q)
    return None


def _schedule(tile: table.Tile, whole: bool, q: Tensor) -> Schedule:
    # Blackwell's pipelined loops around products have been miscompiled (triton #9871, #10590); float32 tiles gain
    # nothing from a second stage that their shared memory would not cost.
    staged = 2 if q.dtype != torch.float32 and architecture(q.device) < 100 else 1
    block_m, block_n = tile.blocks
    resources = Resources(tile.warps, tile.stages or staged, 255 if tile.capped else None)
    return Schedule(whole, min(block_m, padded(q.shape[2])) if whole else block_m, block_n, resources)
