"""Which tiles a call gets: a table, not a search, so that results depend on neither timing nor machine load.

The table was chosen with the compiler (compile_only in _triton/compile.py): the largest tile of each row that compiles
for compute capability 8.0, 9.0 and 10.0 with statistics and all masks, without spills and within 99 KiB of shared
memory. Statistics do not change the tiles, and so not the order of any sum but one: grouped heads then add up dv head
by head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .._triton.launch import Resources, architecture
from .problem import Config, padded

# Most queries and keys of a head that the one-launch backward pass takes; most keys that one forward tile holds.
WHOLE = 128


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


class Tile(NamedTuple):
    """A row of the table. capped: ptxas needs to be told not to spill for the sake of one more program."""

    block_m: int
    block_n: int
    warps: int
    capped: bool = False


Whole = dict[str, dict[int, tuple[Tile, ...]]]

# "half": float16 and bfloat16, on tensor cores. "tf32": float32 rounded for tensor cores. "ieee": float32 in full.
# By arithmetic and padded head size.
FORWARD = {
    "half": {
        16: Tile(128, 64, 8),
        32: Tile(128, 64, 8),
        64: Tile(128, 64, 8),
        128: Tile(128, 64, 8),
        256: Tile(32, 32, 8),
    },
    "tf32": {
        16: Tile(128, 64, 8),
        32: Tile(128, 64, 8),
        64: Tile(64, 32, 4),
        128: Tile(32, 32, 4),
        256: Tile(32, 32, 8),
    },
    "ieee": {16: Tile(32, 32, 4), 32: Tile(32, 32, 4), 64: Tile(32, 32, 4), 128: Tile(32, 32, 4), 256: Tile(32, 32, 8)},
}
ROWS = {
    "half": {
        16: Tile(64, 64, 4),
        32: Tile(64, 64, 4, capped=True),
        64: Tile(64, 64, 8),
        128: Tile(64, 64, 8),
        256: Tile(32, 32, 4),
    },
    "tf32": {16: Tile(64, 64, 4), 32: Tile(64, 32, 8), 64: Tile(32, 32, 4), 128: Tile(32, 32, 4), 256: Tile(16, 32, 8)},
    "ieee": {
        16: Tile(32, 32, 4, capped=True),
        32: Tile(32, 32, 4),
        64: Tile(32, 32, 8, capped=True),
        128: Tile(16, 32, 8, capped=True),
        256: Tile(16, 32, 8, capped=True),
    },
}
COLUMNS = {
    "half": {16: Tile(64, 64, 4), 32: Tile(64, 64, 4), 64: Tile(32, 64, 8), 128: Tile(32, 32, 8), 256: Tile(16, 16, 8)},
    "tf32": {
        16: Tile(64, 64, 4),
        32: Tile(32, 64, 8),
        64: Tile(32, 32, 4, capped=True),
        128: Tile(32, 32, 8),
        256: Tile(16, 16, 8),
    },
    "ieee": {
        16: Tile(32, 32, 4, capped=True),
        32: Tile(32, 32, 4),
        64: Tile(32, 32, 8),
        128: Tile(32, 32, 8, capped=True),
        256: Tile(16, 16, 8, capped=True),
    },
}
# The same where one tile holds all keys: the first whose block_n does. None does where a head is too wide or too long.
FORWARD_WHOLE: Whole = {
    "half": {
        16: (Tile(16, 16, 1), Tile(32, 32, 2), Tile(64, 64, 4), Tile(64, 128, 4)),
        32: (Tile(16, 16, 1), Tile(32, 32, 2), Tile(64, 64, 4), Tile(64, 128, 4)),
        64: (Tile(16, 16, 1), Tile(32, 32, 2), Tile(64, 64, 4), Tile(32, 128, 4)),
    },
    "tf32": {},
    "ieee": {
        16: (Tile(16, 16, 1), Tile(32, 32, 4), Tile(32, 64, 4), Tile(32, 128, 8)),
        32: (Tile(16, 16, 1), Tile(32, 32, 4), Tile(32, 64, 4), Tile(16, 128, 8)),
        64: (Tile(16, 16, 1), Tile(32, 32, 4), Tile(32, 64, 8), Tile(16, 128, 8)),
    },
}
COLUMNS_WHOLE: Whole = {
    "half": {
        16: (Tile(16, 16, 1), Tile(32, 32, 2), Tile(32, 64, 4), Tile(32, 128, 8)),
        32: (Tile(16, 16, 1), Tile(32, 32, 2), Tile(32, 64, 4), Tile(32, 128, 8)),
        64: (Tile(16, 16, 1), Tile(32, 32, 2), Tile(16, 64, 8)),
    },
    "tf32": {},
    "ieee": {
        16: (Tile(16, 16, 2), Tile(16, 32, 4), Tile(32, 64, 8), Tile(32, 128, 8, capped=True)),
        32: (Tile(16, 16, 4), Tile(16, 32, 4), Tile(32, 64, 8), Tile(16, 128, 8)),
        64: (Tile(16, 32, 8), Tile(32, 64, 8)),
    },
}


def forward_schedule(q: Tensor, k: Tensor, v: Tensor, *, tf32: bool) -> Schedule:
    """The forward pass's tiles for these operands."""
    arithmetic, width = _key(q, v, tf32)
    tile = _whole_tile(FORWARD_WHOLE[arithmetic], width, k.shape[2])
    return _schedule(tile or FORWARD[arithmetic][width], tile is not None, q)


def backward_schedule(q: Tensor, k: Tensor, v: Tensor, *, tf32: bool) -> BackwardSchedule:
    """The backward pass's tiles for these operands: one kernel for short heads that share no keys, else two."""
    arithmetic, width = _key(q, v, tf32)
    if q.shape[1] == k.shape[1] and q.shape[2] <= WHOLE:
        tile = _whole_tile(COLUMNS_WHOLE[arithmetic], width, k.shape[2])
        if tile is not None:
            return BackwardSchedule(None, _schedule(tile, True, q))
    rows = _schedule(ROWS[arithmetic][width], False, q)
    return BackwardSchedule(rows, _schedule(COLUMNS[arithmetic][width], False, q))


def apply(config: Config, schedule: Schedule, queries: int, keys: int) -> Config:
    """`config` with the tiles of `schedule`. Raises ValueError where a tile said to be whole does not hold the keys."""
    if schedule.whole and schedule.block_n < keys:
        raise ValueError(
            f"schedule says one tile holds all keys, but its {schedule.block_n} columns are not {keys} keys"
        )
    single = schedule.whole and schedule.block_m >= queries
    return config._replace(whole=schedule.whole, single=single, block_m=schedule.block_m, block_n=schedule.block_n)


def _key(q: Tensor, v: Tensor, tf32: bool) -> tuple[str, int]:
    """Arithmetic and padded head size: where in the table a call is."""
    arithmetic = "half" if q.dtype != torch.float32 else "tf32" if tf32 else "ieee"
    return arithmetic, max(padded(q.shape[3]), padded(v.shape[3]))


def _whole_tile(table: dict[int, tuple[Tile, ...]], width: int, keys: int) -> Tile | None:
    return next((tile for tile in table.get(width, ()) if tile.block_n >= keys), None)


def _schedule(tile: Tile, whole: bool, q: Tensor) -> Schedule:
    # Blackwell's pipelined loops around products have been miscompiled (triton #9871, #10590); float32 tiles gain
    # nothing from a second stage that their shared memory would not cost.
    staged = q.dtype != torch.float32 and architecture(q.device) < 100
    block_m = min(tile.block_m, padded(q.shape[2])) if whole else tile.block_m
    return Schedule(
        whole, block_m, tile.block_n, Resources(tile.warps, 2 if staged else 1, 255 if tile.capped else None)
    )
