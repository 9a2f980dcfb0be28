"""bayesattn tune: measures the tiles of the Triton kernels on this GPU and writes the table that they read."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import tyro

from ..storage import write_text
from .parsing import UsageError, device_of, known, parse

if TYPE_CHECKING:
    from ..bench.tune import Found

TUNED = ("attention", "selective_scan", "causal_conv1d")


@dataclass(frozen=True)
class Tune:
    """Measure which tiles of the Triton kernels are fastest on this GPU, and write them into a table.

    The table is read at run time; nothing is searched for then. Exit code 3 where there is no GPU.
    """

    ops: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which ops; all that read the table where none is named."""
    device: str = "cuda"
    """cuda or cuda:N."""
    out: str = ""
    """Where to write the table: that of the package unless given. BAYESATTN_TILES=FILE makes kernels read another."""
    budget: float = 30.0
    """Seconds of search for each row."""


def main(words: list[str]) -> int:
    flags = parse(Tune, words, prog="bayesattn tune", description=Tune.__doc__ or "")
    for op in flags.ops:
        known(op, TUNED, "op")
    if not 0 < flags.budget < float("inf"):
        raise UsageError(f"--budget must be > 0; got {flags.budget:g}")
    if not flags.device.startswith("cuda"):
        raise UsageError(f"--device must be cuda or cuda:N; got {flags.device!r}")
    if not torch.cuda.is_available():
        print("bayesattn tune: needs a CUDA device; the committed table serves without", file=sys.stderr)
        return 3
    return _tune(flags.ops or TUNED, device_of(flags.device), Path(flags.out) if flags.out else None, flags.budget)


def _tune(ops: tuple[str, ...], device: torch.device, out: Path | None, budget: float) -> int:
    from ..bench.cases import cases_of
    from ..bench.timing import cuda_events
    from ..bench.tune import STAGES, rows_with, tune
    from ..kernels._triton import table
    from ..kernels._triton.launch import architecture

    capability = architecture(device)
    # Blackwell's pipelined loops around products have been miscompiled: no stages there but the op's own.
    stages = STAGES if capability < 100 else ()
    cases = [case for size in ("tunnel", "llm") for case in cases_of(ops, size)]
    rows, where = table.read(table.path()), out or table.path()
    about = {**table.measured(table.path()), str(capability): _about(device)}
    found: list[Found] = []

    def keep(one: "Found") -> None:
        _say(one)
        found.append(one)
        write_text(where, table.text(rows_with(found, rows), about))  # now: a tile may end the process

    tune(cases, device, cuda_events(device), budget, stages, keep)
    changed = sum(one.after != one.before for one in found)
    print(f"{changed} of {len(found)} rows changed; {where}")
    return 0


def _about(device: torch.device) -> dict[str, Any]:
    from ..bench.environment import environment

    known = environment(device)
    return {"gpu": known["gpu"]["name"], "date": known["date"], "versions": known["versions"]}


def _say(found: "Found") -> None:
    change = "as it was" if found.after == found.before else f"{_tile(found.before)} → {_tile(found.after)}"
    print(
        f"{found.key.op}, {found.key.shape}: {change}, {1e3 * found.before_s:.3g} → {1e3 * found.after_s:.3g} ms, "
        f"{found.tried} tried; {found.case}",
        flush=True,
    )


def _tile(tile: Any) -> str:
    stages = f" {tile.stages} stages" if tile.stages else ""
    return f"{'×'.join(map(str, tile.blocks))} {tile.warps} warps{stages}{' capped' if tile.capped else ''}"
