"""Throughput of the local sweep engine: seeds·steps a second with one worker and with more, in turns.

    python -m bench.bench_sweep                      1 and 2 workers, about three minutes
    python -m bench.bench_sweep --workers 1 4 --json sweep.json

Wall clock, since the work is done in other processes. "steady" is from when every worker has finished its first pack
to when the first worker has nothing left; "whole" has the start of the processes, the plan and the last shard in it.
On a machine that has other work, more workers get less of it each: "by processor time" is what idle cores would give,
from the processor seconds that the workers spent, their start included.
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

from bayesattn_fast.sweeps.file import Sweep, sweep_of
from bayesattn_fast.sweeps.run import run_sweep
from bayesattn_fast.sweeps.work import Pack

from .interleaved import machine

TARGET = 1.8
"""How many times as fast two workers on two cores are meant to be as one."""


@dataclass(frozen=True)
class Rate:
    """Seeds·steps a second of one run of a sweep: by the clock, and by the workers' processor time on idle cores."""

    workers: int
    steady: float
    whole: float
    idle: float = 0.0


def sweep(seeds: int, steps: int) -> Sweep:
    """Bijections of 20 symbols, transformers of two layers of 64: what bench/gpu.sh packs on a card."""
    training = {"steps": steps, "batch": 16, "warmup": 10, "eval_every": steps, "eval_sequences": 64}
    return sweep_of(
        {
            "seeds": f"0:{seeds}",
            "tunnels": ["bijection"],
            "models": ["transformer"],
            "settings": {**training, "d_model": 64, "layers": 2, "heads": 2, "log_every": 10},
            "tunnel": {"bijection": {"symbols": 20, "pairs": 19}},
        }
    )


def measure(work: Sweep, workers: int, pack: int) -> Rate:
    """One run into a fresh folder."""
    done: list[tuple[float, int]] = []

    def on_done(finished: Pack) -> None:
        done.append((time.perf_counter(), finished.seed_steps))

    spent, started = _children(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run_sweep(work, Path(folder) / "sweep", workers=workers, pack=pack, on_done=on_done)
        ended = time.perf_counter()
    idle = workers * sum(count for _, count in done) / (_children() - spent)
    return replace(rate(workers, started, done, ended), idle=idle)


def _children() -> float:
    """Processor seconds of processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rate(workers: int, started: float, done: list[tuple[float, int]], ended: float) -> Rate:
    """From the times at which packs were done, and how many seeds·steps each had; at least workers + 1 packs."""
    first, last = workers - 1, len(done) - workers
    steps = sum(count for _, count in done[first + 1 : last + 1])
    whole = sum(count for _, count in done) / (ended - started)
    return Rate(workers, steps / (done[last][0] - done[first][0]), whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--pack", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all runs here")
    options = parser.parse_args()
    if options.seeds // options.pack < 3 * max(options.workers):
        parser.error("too few packs: at least three for each worker")
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    work = sweep(options.seeds, options.steps)
    runs: list[Rate] = []
    for _ in range(options.rounds):
        for workers in options.workers:
            runs.append(measure(work, workers, options.pack))
            one = runs[-1]
            print(f"{workers} workers: {_words(astuple(one)[1:], '{:.1f}')} seeds·steps/s", flush=True)
    base = _medians(runs, options.workers[0])
    for workers in options.workers[1:]:
        times = [b / a for a, b in zip(base, _medians(runs, workers), strict=True)]
        wanted = f" (wanted ×{TARGET})" if (options.workers[0], workers) == (1, 2) else ""
        print(f"{workers} workers beside {options.workers[0]}: {_words(times, '×{:.2f}')}{wanted}")
    if options.json:
        result = {"machine": machine(), "seeds": options.seeds, "pack": options.pack, "steps": options.steps}
        options.json.write_text(json.dumps({**result, "runs": [asdict(run) for run in runs]}, indent=1) + "\n")


def _words(numbers: Sequence[float], shape: str) -> str:
    steady, whole, idle = (shape.format(number) for number in numbers)
    return f"{steady} steady, {whole} whole, {idle} by processor time"


def _medians(runs: list[Rate], workers: int) -> list[float]:
    mine = [astuple(run)[1:] for run in runs if run.workers == workers]
    return [statistics.median(column) for column in zip(*mine, strict=True)]


if __name__ == "__main__":
    main()
