"""Timings that survive a busy machine: contenders take turns in one process, and medians are compared."""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the best, the 20th percentile, the median, the 80th percentile, and of how many runs."""

    best: float
    p20: float
    median: float
    p80: float
    runs: int


def interleaved(
    contenders: dict[str, Callable[[], object]],
    rounds: int = 15,
    budget_s: float = 20.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every contender once a round; one that has used up its share of seconds sits out the later rounds.

    clock: time.process_time leaves out what other processes took, and is fair for one thread only.
    """
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            if len(seen[name]) >= 2 and sum(seen[name]) > budget_s / len(contenders):
                continue
            started = clock()
            run()
            seen[name].append(clock() - started)
    return {name: _summary(times) for name, times in seen.items()}


def _summary(times: list[float]) -> Timing:
    ordered = sorted(1e3 * t for t in times)
    low, high = ordered[int(0.2 * (len(ordered) - 1))], ordered[-1 - int(0.2 * (len(ordered) - 1))]
    return Timing(ordered[0], low, statistics.median(ordered), high, len(ordered))


def machine() -> dict[str, str | int]:
    """What a timing depends on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), model
        )
    return {
        "cpu": model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
