"""bayesattn reproduce EXPERIMENT: the papers' tables and figures, from nothing or from what is already trained."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .parsing import known, parse
from .results import print_json, print_tables

EXAMPLES = """examples:
  bayesattn reproduce table2 --seeds 3
  bayesattn reproduce all --scale quick
  bayesattn reproduce geometry --out runs/mine"""


@dataclass(frozen=True)
class Reproduce:
    """Train what is missing, compute the experiment, write its numbers, figures and the page."""

    scale: Literal["quick", "paper"] = "quick"
    """quick for two CPU cores, paper for a GPU."""
    seeds: str = "5"
    """How many seeds (5), a range (0:64) or a list."""
    out: str = ""
    """Folder of the results; runs/reproduce-SCALE where nothing is named. What it holds is not trained again."""
    runs: str = ""
    """Folder of the trained runs; runs/ in the folder of the results where nothing is named."""
    workers: int = 2
    """Trainings at once, a process and a thread each."""
    train: bool = True
    """Train what is missing; with --no-train what is not trained is left out."""
    quiet: bool = False
    """Show the result only."""
    json: bool = False
    """Print the claims as JSON."""


def main(words: list[str]) -> int:
    from ..reproduce.experiments import EXPERIMENTS

    if not words or words[0] in ("-h", "--help"):
        named = {name: e.about for name, e in EXPERIMENTS.items()} | {"all": "all of these, on one page"}
        listing = "\n".join(f"  {name:<22} {text}" for name, text in named.items())
        print(f"usage: bayesattn reproduce EXPERIMENT [flags]\n\nexperiments:\n{listing}\n\n{EXAMPLES}")
        return 0
    name = known(words[0], [*EXPERIMENTS, "all"], "experiment")
    about = f"{Reproduce.__doc__}\n\n{EXAMPLES}"
    flags = parse(Reproduce, words[1:], prog=f"bayesattn reproduce {name}", description=about)
    # What makes the same page from nothing, wherever the runs lie now.
    command = f"bayesattn reproduce {name} --scale {flags.scale} --seeds {flags.seeds}"
    return _reproduce(list(EXPERIMENTS) if name == "all" else [name], flags, command)


def _reproduce(names: list[str], flags: Reproduce, command: str) -> int:
    from ..reproduce.experiments import EXPERIMENTS
    from ..reproduce.results import compute, write_results
    from ..reproduce.trainer import train_missing
    from ..training import parse_seeds

    seeds, folder = parse_seeds(flags.seeds), Path(flags.out or f"runs/reproduce-{flags.scale}")
    runs, say = Path(flags.runs) if flags.runs else folder / "runs", _say(flags.quiet or flags.json)
    if flags.train:
        needed = dict.fromkeys(pair for name in names for pair in EXPERIMENTS[name].needs)
        try:
            train_missing(_cells(needed, flags.scale, seeds), runs, workers=flags.workers, say=say)
        except KeyboardInterrupt:
            print("bayesattn: stopped; the same command goes on", file=sys.stderr)
            return 130
    for name in names:
        say(f"computing {name}")
        compute(name, flags.scale, seeds, runs, folder)
    page, claims = write_results(folder, command)
    if flags.json:
        print_json({"report": str(page), "claims": [claim.as_json() for claim in claims]})
        return 0
    _print(claims)
    print(f"report: {page}")
    return 0


def _cells(needed: dict[tuple[str, str], None], scale: str, seeds: tuple[int, ...]) -> list[Any]:
    from ..reproduce import cells

    return [cell for cell in cells(scale, seeds) if (cell.tunnel, cell.architecture) in needed]


def _say(quiet: bool) -> Callable[[str], None]:
    start = time.perf_counter()

    def say(text: str) -> None:
        if not quiet:
            print(f"{(time.perf_counter() - start) / 60:5.1f} min  {text}", file=sys.stderr, flush=True)

    return say


def _print(claims: list[Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table("claim", "the papers", "here", "verdict", box=box.SIMPLE)
    colours = {"holds": "green", "holds in part": "cyan", "does not hold": "yellow"}
    for claim in claims:
        table.add_row(claim.text, claim.paper, claim.ours, claim.verdict, style=colours.get(claim.verdict, "dim"))
    print_tables(table)
