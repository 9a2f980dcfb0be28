"""bayesattn dynamics em-vs-sgd: the sticky-chain experiment over many seeds, with the controls it needs."""

import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..parsing import device_of, parse
from ..results import print_json, print_tables
from .environment import environment

EXAMPLES = """examples:
  bayesattn dynamics em-vs-sgd --authors-matrix
  bayesattn dynamics em-vs-sgd --seeds 256 --rates 0.01 0.1 --out runs/em-256
  bayesattn dynamics em-vs-sgd --seeds 8 --length 256 --steps 400 --methods sgd em readout"""


@dataclass(frozen=True)
class EmVsSgd:
    """Train one head on sticky chains with EM-like and plain learning rates, and test the difference."""

    seeds: str = "42,2024,1337,7777,9999"
    """How many seeds (256), a range (0:64) or a list; the authors' five by default."""
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """Base learning rates of SGD and of the EM-like schedule; the controls run at the lowest."""
    methods: tuple[str, ...] = ("sgd", "em", "query", "key", "routing", "readout")
    """What is sped up: nothing (sgd), values (em), or one of the controls."""
    ratio: float = 10.0
    """How much faster."""
    steps: int = 1000
    """Steps of full-batch gradient descent, a multiple of 20."""
    length: int = 2000
    """Symbols of the chain."""
    authors_matrix: bool = False
    """The transition matrix of the authors' code, which stays with 0.3498 instead of 0.3."""
    epsilon: float = 0.1
    """Threshold on a fresh chain: nats above the exact filter."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one."""
    out: str = ""
    """Folder of the results; runs/em-vs-sgd where nothing is named. Seeds that it holds are not trained again."""
    quiet: bool = False
    """Show the result only."""
    json: bool = False
    """Print the result as JSON."""


def main(words: list[str]) -> int:
    about = f"{EmVsSgd.__doc__}\n\n{EXAMPLES}"
    flags = parse(EmVsSgd, words, prog="bayesattn dynamics em-vs-sgd", description=about)
    return _em_vs_sgd(flags, f"bayesattn dynamics em-vs-sgd {' '.join(words)}".strip())


def _em_vs_sgd(flags: EmVsSgd, command: str) -> int:
    from ...dynamics import Experiment, Summary, run
    from ...dynamics.page import write_page
    from ...training import parse_seeds

    names = ("steps", "length", "authors_matrix", "rates", "ratio", "methods")
    experiment = Experiment(**{name: getattr(flags, name) for name in names})
    seeds, folder = parse_seeds(flags.seeds), Path(flags.out or "runs/em-vs-sgd")
    device = device_of(flags.device)
    progress = None if flags.quiet or flags.json else _progress(len(seeds), len(experiment.schedules), folder)
    try:
        rows = run(experiment, seeds, folder, progress, device)
    except KeyboardInterrupt:
        print("bayesattn: stopped; the same command goes on with the seeds that are left", file=sys.stderr)
        return 130
    summary = Summary(experiment, rows, flags.epsilon)
    page = write_page(summary, folder, command, environment(device))
    if flags.json:
        print_json({"folder": str(folder), "report": str(page), **as_json(summary)})
        return 0
    _print(summary)
    print(f"report: {page}")
    return 0


def _progress(count: int, schedules: int, folder: Path) -> Callable[[int, int], None]:
    """A line at most every ten seconds, and at the end."""
    print(f"training {count} seeds × {schedules} schedules in {folder}", file=sys.stderr, flush=True)
    started, shown = time.perf_counter(), [0.0]

    def on_seed(done: int, seed: int) -> None:
        now = time.perf_counter() - started
        if done == count or now - shown[0] > 10:
            shown[0] = now
            left = now / done * (count - done)
            print(f"seed {seed}: {done} of {count} done, {left:.0f} s left", file=sys.stderr, flush=True)

    return on_seed


def as_json(summary: Any) -> dict[str, Any]:
    """The numbers behind the tables; what is not finite is null."""
    from ...dynamics.page import comparisons, verdict

    schedules = []
    for s in summary.experiment.schedules:
        finals = {
            c: summary.mean(s.name, c) for c in ("loss", "held_out_loss", "held_out_entropy", "held_out_accuracy")
        }
        schedules.append(
            {
                "schedule": s.name,
                "method": s.method,
                "rates": s.rates,
                "speedup": summary.speedup(s.name)._asdict(),
                "reach_filter_plus_epsilon": summary.reach(s.name)._asdict(),
                "diverged": summary.diverged(s.name),
                **{name: dataclasses.asdict(found) for name, found in finals.items()},
                "lowest_held_out_loss": dataclasses.asdict(summary.lowest_mean(s.name)),
                "excess_over_filter": dataclasses.asdict(summary.excess_over_filter(s.name)),
            }
        )
    paired = [
        {"comparison": text, "p": found.p, "effect": found.effect, **dataclasses.asdict(found.difference)}
        for text, found in comparisons(summary)
    ]
    exact = {name: summary.filter_mean(f"filter_{name}") for name in ("loss", "entropy", "accuracy")}
    result = {
        "experiment": dataclasses.asdict(summary.experiment),
        "seeds": summary.seeds,
        "epsilon": summary.epsilon,
        "verdict": verdict(summary).text,
        "exact_filter": exact,
        "schedules": schedules,
        "paired": paired,
    }
    return _finite(result)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _print(summary: Any) -> None:
    from rich import box
    from rich.table import Table

    from ...dynamics.page import COLUMNS, COMPARISONS, comparisons, exact_cells, paired_cells, table_rows, verdict
    from ...dynamics.schedules import label

    ratio = summary.experiment.ratio
    main_table = Table("schedule (base rate)", *(m.label for m in COLUMNS), box=box.SIMPLE)
    for s, cells in table_rows(summary):
        main_table.add_row(label(s, ratio), *cells)
    main_table.add_row("exact filter", *exact_cells(summary))
    tests = Table("paired comparison", *(m.label for m in COMPARISONS), box=box.SIMPLE)
    for text, found in comparisons(summary):
        tests.add_row(text, *paired_cells(found))
    print_tables(main_table, tests)
    print(verdict(summary).text)
