"""Measures which tiles are fastest on this GPU, for the table that kernels read at run time (kernels/_triton/table.py).

Every case of the benchmark is run once, to hear what its launches ask the table. For each question the tile is then
changed one step at a time, a block's edge or the number of warps doubled or halved, and the change is kept where the
case gets faster by more than the noise: a descent, since every tile has to be compiled. A tile that makes the results
wrong, or that does not fit, is passed over.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels._triton import table
from ..kernels._triton.table import Asked, Key, Tile
from .case import OURS, Case, Draw, Results, as_tuple, relative_errors
from .runner import check
from .timing import Measure

WARPS = (1, 2, 4, 8, 16)
STAGES = (1, 2, 3, 4)
GAIN = 0.03
"""Smallest share of the time by which a tile must be faster to take the place of another."""
RUNS = 20

Seconds = Callable[[Tile], float | None]
"""The time of a tile; None where it cannot run or its results are wrong."""


@dataclass(frozen=True)
class Found:
    """The fastest tile of one question, beside the one that was there: seconds of the whole case, tiles tried."""

    key: Key
    case: str
    before: Tile
    after: Tile
    before_s: float
    after_s: float
    tried: int


def neighbours(asked: Asked, tile: Tile, stages: tuple[int, ...]) -> Iterator[Tile]:
    """Tiles one step away from `tile`, within the bounds of the question."""
    for i, (edge, (least, most)) in enumerate(zip(tile.blocks, asked.bounds, strict=True)):
        for changed in (edge // 2, edge * 2):
            if least <= changed <= most:
                yield tile._replace(blocks=(*tile.blocks[:i], changed, *tile.blocks[i + 1 :]))
    for warps in (tile.warps // 2, tile.warps * 2):
        if warps in WARPS:
            yield tile._replace(warps=warps)
    for count in stages:
        if count != tile.stages:
            yield tile._replace(stages=count)
    yield tile._replace(capped=not tile.capped)


def descend(
    asked: Asked,
    seconds: Seconds,
    stages: tuple[int, ...],
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Tile, dict[Tile, float | None]]:
    """The fastest tile that a descent from the present one finds in `budget_s` seconds, and the time of all tried.

    ValueError where the present one cannot run.
    """
    end = clock() + budget_s
    best = asked.tile
    times = {best: seconds(best)}
    fastest = times[best]
    if fastest is None:
        raise ValueError(f"the tile in the table does not run: {', '.join(asked.key)}: {best}")
    moved = True
    while moved:
        moved = False
        for tile in neighbours(asked, best, stages):
            if tile in times:
                continue
            if clock() > end:
                return best, times
            taken = times[tile] = seconds(tile)
            if taken is not None and taken < fastest * (1 - GAIN):
                # From there on: its own neighbours, not what is left of those of a slower tile.
                best, fastest, moved = tile, taken, True
                break
    return best, times


def tune(
    cases: Iterable[Case],
    device: torch.device,
    measure: Measure,
    budget_s: float,
    stages: tuple[int, ...] = STAGES,
    on_found: Callable[[Found], None] | None = None,
) -> list[Found]:
    """Every question that `cases` put to the table, once: the first case that asks it decides."""
    found: dict[Key, Found] = {}
    for case in cases:
        if device.type not in case.devices:
            continue
        if OURS not in check(case, device, 1, peers=False).errors:
            raise ValueError(f"{case.name} is wrong with the tiles that it has: see bayesattn verify")
        run = case.prepare(Draw.of(1, device, case.dtype, peers=False), case.shape).contenders[OURS].run
        with table.listening() as heard:
            right = as_tuple(run())
        for key, asked in heard.items():
            if key in found:
                continue
            seconds = _timer(key, run, right, 2 * case.tolerance, measure)
            best, times = descend(asked, seconds, stages, budget_s)
            before, after = times[asked.tile], times[best]
            assert before is not None
            assert after is not None
            found[key] = Found(key, case.name, asked.tile, best, before, after, len(times))
            if on_found:
                on_found(found[key])
    return list(found.values())


def _timer(
    key: Key, run: Callable[[], Tensor | tuple[Tensor, ...]], right: Results, allowed: float, measure: Measure
) -> Seconds:
    def seconds(tile: Tile) -> float | None:
        try:
            with table.forced(key.op, key.shape, tile):
                if max(relative_errors(as_tuple(run()), right)) > allowed:
                    return None
                return statistics.median(measure(run) for _ in range(RUNS))
        except Exception:  # out of shared memory, or whatever else a compiler says to a tile that it cannot make
            return None

    return seconds


def rows_with(found: Iterable[Found], rows: dict[Key, Tile]) -> dict[Key, Tile]:
    """The table with what was measured; a row that equals the one for any architecture is not written."""
    made = dict(rows)
    for one in found:
        made.pop(one.key, None)
        if made.get(one.key._replace(architecture=table.ANY)) != one.after:
            made[one.key] = one.after
    # Rows for any architecture first, each op's in the order in which they stand.
    return dict(sorted(made.items(), key=lambda row: (row[0].op, row[0].architecture != table.ANY)))
