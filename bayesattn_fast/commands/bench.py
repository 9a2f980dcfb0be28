"""bayesattn bench: every op beside its peers, against the limits of this machine, measured in the same run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import tyro

from .parsing import UsageError, device_of, known, parse
from .results import print_json, print_tables

if TYPE_CHECKING:
    from ..bench.record import Record

EXAMPLES = """examples:
  bayesattn bench attention
  bayesattn bench --sizes tunnel --curves --save runs/bench
  bayesattn bench hmm --against runs/bench/results.json"""


@dataclass(frozen=True)
class Bench:
    """Every op beside its peers and beside the limits of this machine, in one run.

    Results are compared with float64 first, and what is wrong is not timed. Exit code 1: something of ours was wrong or
    failed, or --against found it slower.
    """

    ops: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which ops; all where none is named."""
    sizes: Literal["tunnel", "llm", "all"] = "tunnel"
    """Sizes of wind tunnels, of language models, or both and the curves."""
    curves: bool = False
    """Attention, the selective scan and the HMM filter at a series of lengths, too."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one and nothing is named."""
    save: str = ""
    """Folder for results.json, results.csv, report.html and its pictures: a roofline, and speed against length."""
    against: str = ""
    """results.json of an earlier run on the same machine: what became slower, and whether that is chance."""
    threads: int = 1
    """Threads of a CPU run; 0 takes torch's number. With one, the time of the processor is counted and not the clock's,
    so that other work on the machine does not show."""
    budget: float = 5.0
    """Seconds of timing for each case."""
    seed: int | None = None
    """Seed of the inputs; drawn anew unless given."""
    json: bool = False
    """Print the results as JSON."""


def main(words: list[str]) -> int:
    from ..bench import record as records
    from ..bench.cases import OPS, cases_of
    from ..bench.page import write_page
    from ..bench.runner import Settings, run

    about = f"{Bench.__doc__}\n\n{EXAMPLES}"
    flags = parse(Bench, words, prog="bayesattn bench", description=about)
    for op in flags.ops:
        known(op, OPS, "op")
    if flags.threads < 0 or not 0 < flags.budget < float("inf"):
        raise UsageError(f"--threads must be ≥ 0 and --budget > 0; got {flags.threads} and {flags.budget:g}")
    before = records.load(flags.against) if flags.against else None
    if flags.save:
        Path(flags.save).mkdir(parents=True, exist_ok=True)  # refused now, not after minutes of timing
    settings = Settings(device_of(flags.device), flags.threads, flags.budget, seed=flags.seed)
    found = run(cases_of(flags.ops, flags.sizes, curves=flags.curves), settings, _progress(flags.save))
    if flags.save:
        page = write_page(found, Path(flags.save))
    if flags.json:
        print_json(records.as_dict(found))
    else:
        _print(found)
    if flags.save:
        print(f"report: {page}", file=sys.stderr if flags.json else sys.stdout)
    worse = _compare(before, found, sys.stderr if flags.json else sys.stdout) if before else False
    return 1 if worse or found.faults else 0


def _progress(save: str) -> "Callable[[int, int, str, Record], None]":
    """A line a case on stderr; what is done is kept, whatever comes after."""
    from ..bench import record as records

    def on_case(done: int, count: int, name: str, found: "Record") -> None:
        print(f"[{done}/{count}] {name}", file=sys.stderr, flush=True)
        if save:
            records.save(found, Path(save))

    return on_case


def _print(found: "Record") -> None:
    from ..bench import table

    print_tables(*(table.case_table(rows) for rows in found.cases()))
    for line in table.lines(found):
        print(line)


def _compare(before: "Record", found: "Record", stream: TextIO) -> bool:
    """Say what changed; whether anything of ours became slower."""
    from ..bench.against import compare
    from ..report.numbers import number

    changes = compare(before, found)
    for change in changes:
        if change.verdict != "same":
            row = change.row
            print(
                f"{change.verdict}: {row.op} {row.work}, {row.precision}: {row.sizes}: {number(change.before_ms)} → "
                f"{number(change.after_ms)} ms, ×{number(change.ratio)} after a drift of ×{number(change.drift)} of "
                f"its peers, p = {number(change.p, 2)}",
                file=stream,
            )
    slower = sum(change.verdict == "slower" for change in changes)
    print(f"against the earlier run: {slower} of {len(changes)} cases slower", file=stream)
    return slower > 0
