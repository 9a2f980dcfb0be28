"""bayesattn sweep FILE, sweep status FOLDER, sweep merge FOLDER: many seeds of many cells, in shards."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .parsing import UsageError, device_of, parse
from .results import print_json, print_tables

EXAMPLES = """examples:
  bayesattn sweep examples/sweep.toml --dry-run
  bayesattn sweep examples/sweep.toml --out runs/my-sweep
  bayesattn sweep --tunnels bijection recall --models transformer lstm --seeds 0:32 --settings steps=200 lr=0.001,0.003
  bayesattn sweep examples/sweep.toml --out runs/my-sweep --resume     # what is missing, or more seeds
  bayesattn sweep status runs/my-sweep
  bayesattn sweep merge runs/my-sweep --out all.parquet
  bayesattn stats runs/my-sweep --by model"""


@dataclass(frozen=True)
class SweepFlags:
    """Train every cell of tunnels × models × settings with every seed; each pack of seeds is a shard of its own."""

    out: str = ""
    """Folder of the sweep; runs/ and the file's name where nothing is named."""
    engine: Literal["local", "ray"] = "local"
    """local: processes on this machine; ray: tasks on a Ray cluster, running or started here."""
    resume: bool = False
    """Go on with the sweep in the folder: what is missing, damaged, or new in the file."""
    dry_run: bool = False
    """Print the plan, its expected time and disk, and stop."""
    workers: int = 0
    """Processes or tasks at a time; 0 is one for each core this process may use."""
    pack: int = 0
    """Seeds in a pack; 0 chooses from measured memory."""
    seeds: str = ""
    """Instead of the file's seeds: a count (32), a range (0:64) or a list."""
    tunnels: tuple[str, ...] = ()
    """Instead of the file's tunnels."""
    models: tuple[str, ...] = ()
    """Instead of the file's models."""
    settings: tuple[str, ...] = ()
    """Settings of model or training as NAME=VALUE, several values with commas."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one."""
    quiet: bool = False
    """Show the result only."""
    json: bool = False
    """Print the plan or the result as JSON."""


@dataclass(frozen=True)
class FolderFlags:
    """Look at the folder of a sweep."""

    out: str = ""
    """merge: the file to write; FOLDER/merged.parquet where nothing is named."""
    json: bool = False
    """Print the result as JSON."""


def main(words: list[str]) -> int:
    if not words:
        raise UsageError("sweep takes a TOML file or flags, or status FOLDER, or merge FOLDER (see bayesattn sweep -h)")
    if words[0] in ("status", "merge"):
        return _look(words)
    about = f"{SweepFlags.__doc__}\n\n{EXAMPLES}"
    file = None if words[0].startswith("-") else Path(words[0])
    flags = parse(SweepFlags, words[file is not None :], prog="bayesattn sweep", description=about)
    return _sweep(file, flags, f"bayesattn sweep {' '.join(words)}")


def _sweep(file: Path | None, flags: SweepFlags, command: str) -> int:
    from ..sweeps import Store, make_plan, read_sweep, run_sweep, sweep_of
    from ..sweeps.store import Done

    extra = _from_flags(flags)
    sweep = read_sweep(file, extra) if file else sweep_of(extra)
    device, workers = str(device_of(flags.device)), flags.workers or _cores()
    if device != "cpu" and not flags.workers:
        workers = 1  # one process fills a GPU
    folder = Path(flags.out or f"runs/{file.stem if file else 'sweep'}")
    if flags.dry_run:
        done = Store(folder).done() if folder.is_dir() else Done()
        plan = make_plan(sweep, done, workers=workers, pack=flags.pack, device=device)
        print_json(_plan_json(plan)) if flags.json else _print_plan(plan, folder)
        return 0
    progress = _Progress(quiet=flags.quiet or flags.json)
    try:
        store = run_sweep(
            *(sweep, folder),
            engine=flags.engine,
            workers=workers,
            pack=flags.pack,
            device=device,
            resume=flags.resume,
            command=command,
            on_plan=progress.start,
            on_done=progress.done,
        )
    except KeyboardInterrupt:
        print(f"bayesattn: stopped; go on with: {_again(command)}", file=sys.stderr)
        return 130
    except RuntimeError as error:
        raise OSError(f"{error}; finished shards are kept, go on with: {_again(command)}") from error
    if flags.json:
        print_json(_status(store))
        return 0
    _print_status(store)
    print(f"next: bayesattn stats {folder}")
    return 0


def _again(command: str) -> str:
    return command if "--resume" in command else f"{command} --resume"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _from_flags(flags: SweepFlags) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if flags.seeds:
        found["seeds"] = flags.seeds
    for name in ("tunnels", "models"):
        if given := getattr(flags, name):
            found[name] = list(given)
    if flags.settings:
        found["settings"] = dict(_setting(text) for text in flags.settings)
    return found


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"--settings takes NAME=VALUE, several values with commas; got {text!r}")
    values = [_value(word) for word in value.split(",")]
    return name, values if len(values) > 1 else values[0]


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word, word)


class _Progress:
    """A line at most every few seconds: how much is done, at what rate, how long the rest will take."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.shown = quiet, 0.0
        self.packs = self.seeds = self.steps = 0

    def start(self, plan: Any) -> None:
        self.plan, self.started = plan, time.perf_counter()
        if not self.quiet:
            print(_headline(plan), file=sys.stderr, flush=True)

    def done(self, pack: Any) -> None:
        self.packs, self.seeds, self.steps = (
            self.packs + 1,
            self.seeds + len(pack.members),
            self.steps + pack.seed_steps,
        )
        now = time.perf_counter() - self.started
        if self.quiet or (now - self.shown < 5 and self.packs < len(self.plan.packs)):
            return
        self.shown, rate = now, self.steps / now
        left = (self.plan.seed_steps - self.steps) / rate
        what = f"{self.packs} of {len(self.plan.packs)} packs, {self.seeds:,} of {self.plan.seeds:,} seeds"
        print(f"{what}, {rate:,.0f} seeds·steps/s, {left:.0f} s left", file=sys.stderr, flush=True)


def _headline(plan: Any) -> str:
    if not plan.packs:
        return "nothing is missing"
    sizes = sorted({len(pack.members) for pack in plan.packs})
    each = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return (
        f"{plan.seeds:,} seeds to train in {len(plan.packs)} packs of {each}, {plan.workers} at a time; "
        f"expected {_duration(plan.seconds)} and {plan.disk / 1e6:.1f} MB"
    )


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"


def _plan_json(plan: Any) -> dict[str, Any]:
    return {
        "packs": [
            {"parts": [{"cell": c.name, "seeds": list(s)} for c, s in p.parts], "shard": p.name} for p in plan.packs
        ],
        "seeds": plan.seeds,
        "seed_steps": plan.seed_steps,
        "workers": plan.workers,
        "expected_seconds": plan.seconds,
        "expected_bytes": plan.disk,
    }


def _print_plan(plan: Any, folder: Path) -> None:
    from rich import box
    from rich.table import Table

    from ..sweeps.work import cell_key

    table = Table("cell", "seeds missing", "packs", "steps of a seed", "s a seed", "MB a seed", box=box.SIMPLE)
    cells = {cell_key(cell): cell for pack in plan.packs for cell, _ in pack.parts}
    for key, cell in cells.items():
        mine = [len(seeds) for pack in plan.packs for c, seeds in pack.parts if cell_key(c) == key]
        cost = plan.costs[key]
        numbers = (sum(mine), len(mine), cell.steps, f"{cost.seconds:.3g}", f"{cost.bytes / 1e6:.3g}")
        table.add_row(cell.name, *map(str, numbers))
    print_tables(table)
    print(f"{folder}: {_headline(plan)}")


def _look(words: list[str]) -> int:
    from ..sweeps import Store

    what, rest = words[0], words[1:]
    if not rest or rest[0].startswith("-"):
        if rest[:1] in (["-h"], ["--help"]):
            parse(FolderFlags, rest, prog=f"bayesattn sweep {what} FOLDER", description=f"{FolderFlags.__doc__}")
        raise UsageError(f"sweep {what} takes the folder of a sweep")
    flags = parse(FolderFlags, rest[1:], prog=f"bayesattn sweep {what} {rest[0]}", description=EXAMPLES)
    store = Store(Path(rest[0]))
    store.manifest()
    if what == "status":
        print_json(_status(store)) if flags.json else _print_status(store)
        return 0
    path = Path(flags.out) if flags.out else store.folder / "merged.parquet"
    rows = store.merge(path)
    print_json({"file": str(path), "rows": rows}) if flags.json else print(f"{path}: {rows:,} rows")
    return 0


def _status(store: Any) -> dict[str, Any]:
    manifest, done = store.manifest(), store.done()
    wanted = set(manifest["seeds"])
    cells = [
        {"cell": c["name"], "done": len(done.seeds.get(c["key"], set()) & wanted), "seeds": len(wanted)}
        for c in manifest["cells"]
    ]
    times = sorted(path.stat().st_mtime for path in store.shards)
    total, finished = sum(c["seeds"] for c in cells), sum(c["done"] for c in cells)
    busy, left = _in_use(store.folder), None
    if busy and len(times) > 1 and times[-1] > times[0]:
        left = (total - finished) / (finished / (times[-1] - times[0]))
    return {
        "folder": str(store.folder),
        "running": busy,
        "done": finished,
        "seeds": total,
        "shards": len(times),
        "damaged": [path.name for path in done.damaged],
        "seconds_left": left,
        "cells": cells,
    }


def _in_use(folder: Path) -> bool:
    from ..training.run import locked

    try:
        with locked(folder):
            return False
    except ValueError:
        return True


def _print_status(store: Any) -> None:
    from rich import box
    from rich.table import Table

    found = _status(store)
    table = Table("cell", "seeds done", box=box.SIMPLE)
    for cell in found["cells"]:
        table.add_row(cell["cell"], f"{cell['done']:,} of {cell['seeds']:,}")
    print_tables(table)
    state = "running" if found["running"] else ("finished" if found["done"] == found["seeds"] else "stopped")
    left = f", about {_duration(found['seconds_left'])} left" if found["seconds_left"] else ""
    print(
        f"{found['folder']}: {state}, {found['done']:,} of {found['seeds']:,} seeds in {found['shards']} shards{left}"
    )
    for name in found["damaged"]:
        print(f"bayesattn: shard {name} is damaged; --resume trains its seeds again", file=sys.stderr)
