"""bayesattn dynamics two-timescale RUN: when routing settles over training, and when values do."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from ..parsing import UsageError, device_of, parse
from ..results import print_json, print_tables
from .environment import environment

EXAMPLES = """examples:
  bayesattn dynamics two-timescale runs/demo
  bayesattn dynamics two-timescale runs/demo --probes 80 --threshold 0.1

A run keeps its last checkpoint only. Its past is a function of its configuration: the run is trained again, which
takes as long as it took, probed on the way and compared with the checkpoint; what was measured is kept in
RUN/two-timescale and not measured twice."""


@dataclass(frozen=True)
class TwoTimescale:
    """When does the routing of every head come to rest over training, and when do its values?"""

    run: Positional[str]
    """Folder of the run, a transformer's."""
    probes: int = 40
    """Steps to look at, half of them evenly spaced, half closer together at the start."""
    sequences: int = 16
    """Held-out sequences of each seed."""
    threshold: float = 0.05
    """Distance from the end below which a head has settled."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one."""
    quiet: bool = False
    """Show the result only."""
    json: bool = False
    """Print the numbers as JSON."""


def main(words: list[str]) -> int:
    from ...dynamics.two_timescale import FOLDER, Probing, replay, settling
    from ...dynamics.two_timescale_page import verdict, warnings, write_page
    from ...training.run import read_config

    about = f"{TwoTimescale.__doc__}\n\n{EXAMPLES}"
    flags = parse(TwoTimescale, words, prog="bayesattn dynamics two-timescale", description=about)
    if not 0 < flags.threshold < 1:
        raise UsageError(f"--threshold must lie between 0 and 1; got {flags.threshold:g}")
    folder, probing = Path(flags.run), Probing(flags.probes, flags.sequences)
    config = read_config(folder)
    progress = None if flags.quiet or flags.json else _progress(folder)
    device = device_of(flags.device)
    replayed = replay(folder, probing, device, progress)
    found, relative = (settling(replayed.rows, flags.threshold, share) for share in (False, True))
    title = f"{config.model.model} on {config.tunnel.name}"
    command = f"bayesattn dynamics two-timescale {' '.join(words)}".strip()
    page = write_page(replayed, folder, flags.threshold, title, command, environment(device))
    said = verdict(found, relative, flags.threshold).text
    if flags.json:
        tables = {"threshold": found, "share_of_start": relative}
        heads = {name: [{**s._asdict(), "first": s.first} for s in group] for name, group in tables.items()}
        curves = str(folder / FOLDER / "distances.parquet")
        print_json({"report": str(page), "curves": curves, "drift": replayed.drift, "verdict": said, **heads})
        return 0
    print_tables(_table(found, f"below {flags.threshold:g}"), _table(relative, "share of the distance at step 0"))
    for text in warnings(replayed):
        print(f"bayesattn: {text}", file=sys.stderr)
    print(said)
    print(f"report: {page}")
    return 0


def _table(found: Any, title: str) -> Any:
    from rich import box
    from rich.table import Table

    from ...dynamics.two_timescale_page import COLUMNS, by_head

    table = Table("head", *(column.label for column in COLUMNS), title=title, box=box.SIMPLE)
    for head in by_head(found):
        table.add_row(head.name, *head.cells())
    return table


def _progress(folder: Path) -> Callable[[int, int], None]:
    """Said at the first probe, then a line at most every ten seconds."""
    started, shown = time.perf_counter(), [0.0]

    def on_step(step: int, last: int) -> None:
        now = time.perf_counter() - started
        if step == 0:
            print(f"training {folder} again, {last} steps", file=sys.stderr, flush=True)
        elif step == last or now - shown[0] > 10:
            shown[0] = now
            print(f"step {step} of {last}, {now / step * (last - step):.0f} s left", file=sys.stderr, flush=True)

    return on_step
