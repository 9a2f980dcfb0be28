"""Timings that survive a busy machine: contenders take turns in one process, and medians are compared.

pytest-benchmark times one function to the end before it starts the next, so whatever else the machine does meanwhile
falls on one of them. Here a round calls every contender once: a slow second slows all alike, and the ratio holds.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Run = Callable[[], object]
Measure = Callable[[Run], float]
NOISY = 0.2
"""A spread above this share of the median is said wherever the timing is shown."""
FLUSHED_BYTES = 256 * 2**20
"""Written between two timings on a GPU: more than any second-level cache holds."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the best, the 20th percentile, the median, the 80th percentile, and of how many runs."""

    best: float
    p20: float
    median: float
    p80: float
    runs: int
    samples: tuple[float, ...] = field(default=(), repr=False)
    """Every run in the order in which they were made."""

    @property
    def spread(self) -> float:
        """(p80 − p20) / median."""
        return (self.p80 - self.p20) / self.median if self.median > 0 else 0.0

    @property
    def noisy(self) -> bool:
        """Whether the spread exceeds 20 %."""
        return self.spread > NOISY


def interleaved(
    contenders: dict[str, Run],
    rounds: int = 15,
    budget_s: float = 20.0,
    clock: Callable[[], float] = time.perf_counter,
    measure: Measure | None = None,
) -> dict[str, Timing]:
    """Time every contender once a round; one that has used up its share of seconds sits out the later rounds.

    clock: time.process_time leaves out what other processes took, and is fair for one thread only. measure, the seconds
    of one call, takes the place of the clock (`cuda_events`). Everyone is called once before the first round.
    """
    seconds = measure or by_clock(clock)
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            if len(seen[name]) >= 3 and sum(seen[name]) > budget_s / len(contenders):
                continue
            seen[name].append(seconds(run))
    return {name: summary([1e3 * t for t in times]) for name, times in seen.items()}


def by_clock(clock: Callable[[], float]) -> Measure:
    """Seconds of one call on the CPU."""

    def measure(run: Run) -> float:
        started = clock()
        run()
        return clock() - started

    return measure


def cuda_events(device: torch.device) -> Measure:
    """Seconds of one call between two events of the stream, with the second-level cache cold, as in Triton's do_bench.

    The device still writes the buffer while the call is queued, so a short call does not wait for its own launch.
    """
    buffer = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)

    def measure(run: Run) -> float:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        buffer.zero_()
        started.record()
        run()
        ended.record()
        torch.cuda.synchronize(device)
        return started.elapsed_time(ended) / 1e3

    return measure


def choose(device: torch.device, threads: int) -> tuple[str, Measure]:
    """How calls are timed on `device`, in words and as a function."""
    if device.type == "cuda":
        return "CUDA events, cold L2", cuda_events(device)
    if threads == 1:
        return "processor time of one thread", by_clock(time.process_time)
    return "wall clock", by_clock(time.perf_counter)


def summary(milliseconds: list[float]) -> Timing:
    """Order statistics of at least one sample."""
    ordered = sorted(milliseconds)
    low, high = ordered[int(0.2 * (len(ordered) - 1))], ordered[-1 - int(0.2 * (len(ordered) - 1))]
    return Timing(ordered[0], low, statistics.median(ordered), high, len(ordered), tuple(milliseconds))
