"""From rows of single runs to statements: speed-ups, paired differences, intervals, effect sizes.

A run that diverged is left out of every mean, and counted. Steps are of gradient descent, losses in nats.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from ..evaluation.summary import Interval, interval
from .experiment import Experiment
from .schedules import Schedule, schedule

RESAMPLES = 2000


class Speedup(NamedTuple):
    """Steps of training over the mean step at which the baseline's final loss is passed."""

    value: float
    low: float
    high: float
    """Percentile bootstrap over seeds, 95 %."""
    mean_step: float
    reached: int
    seeds: int


class Paired(NamedTuple):
    """A difference over seeds: mean with 95 % t-interval, p of the paired t-test, Cohen's d of the differences."""

    difference: Interval
    p: float
    effect: float


class Reach(NamedTuple):
    """The first recorded step at which a threshold was met: median over seeds (∞ if under half did), and how many."""

    median: float
    reached: int
    seeds: int


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Of a − b, seed by seed; p and effect are NaN below two seeds."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    found = interval(differences)
    if found.low is None or len(differences) < 2:
        return Paired(found, math.nan, math.nan)
    deviation = math.sqrt(math.fsum((d - found.mean) ** 2 for d in differences) / (len(differences) - 1))
    if deviation == 0:
        return Paired(found, math.nan if found.mean == 0 else 0.0, math.nan)
    from scipy.special import stdtr

    t = found.mean / deviation * math.sqrt(len(differences))
    return Paired(found, float(2 * stdtr(len(differences) - 1, -abs(t))), found.mean / deviation)


def first_below(values: Sequence[float], threshold: float) -> int | None:
    """Index of the first value below the threshold, or None."""
    return next((i for i, value in enumerate(values) if value < threshold), None)


@dataclass(frozen=True)
class Summary:
    """All statements about the rows of one experiment."""

    experiment: Experiment
    rows: Sequence[Mapping[str, Any]]
    epsilon: float = 0.1

    @cached_property
    def by_schedule(self) -> dict[str, dict[int, Mapping[str, Any]]]:
        """Runs that did not diverge, by schedule and seed."""
        found: dict[str, dict[int, Mapping[str, Any]]] = {s.name: {} for s in self.experiment.schedules}
        for row in self.rows:
            if not row["diverged"]:
                found[row["schedule"]][row["seed"]] = row
        return found

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(row["seed"] for row in self.rows))

    @property
    def baseline(self) -> Schedule:
        """SGD at the lowest rate: the authors' baseline."""
        return schedule("sgd", min(self.experiment.rates), self.experiment.ratio)

    def diverged(self, name: str) -> int:
        return sum(row["diverged"] for row in self.rows if row["schedule"] == name)

    def finals(self, name: str, column: str) -> dict[int, float]:
        """The last value of a column, by seed."""
        return {seed: row[column][-1] for seed, row in self.by_schedule[name].items()}

    def mean(self, name: str, column: str) -> Interval:
        """Final value of a column: mean and interval over seeds."""
        return interval(list(self.finals(name, column).values()))

    def lowest(self, name: str) -> dict[int, float]:
        """The lowest held-out loss of every seed: what stopping in time would give."""
        return {seed: min(row["held_out_loss"]) for seed, row in self.by_schedule[name].items()}

    def lowest_mean(self, name: str) -> Interval:
        """The lowest held-out loss: mean and interval over seeds."""
        return interval(list(self.lowest(name).values()))

    def excess_over_filter(self, name: str) -> Interval:
        """Lowest held-out loss minus the exact filter's loss on the same chain."""
        runs = self.by_schedule[name]
        return interval([low - runs[seed]["filter_loss"] for seed, low in self.lowest(name).items()])

    def speedup(self, name: str) -> Speedup:
        """The authors' criterion: steps / mean step at which the training loss passes SGD's mean final loss.

        A run that never does counts as all steps, which understates nothing but the slowness.
        """
        if name not in self._speedups:
            self._speedups[name] = self._measure_speedup(name)
        return self._speedups[name]

    @cached_property
    def _speedups(self) -> dict[str, Speedup]:
        return {}

    def _measure_speedup(self, name: str) -> Speedup:
        steps, final = self.experiment.steps, {}
        for seed, row in self.by_schedule[self.baseline.name].items():
            final[seed] = row["loss"][steps - 1]
        runs = {seed: row["loss"] for seed, row in self.by_schedule[name].items() if seed in final}
        # The lowest loss so far, negated: rising, so that the step that passes a threshold is found by bisection.
        passed = {seed: [-low for low in accumulate(losses, min)] for seed, losses in runs.items()}
        seeds = list(runs)
        if not seeds:
            return Speedup(math.nan, math.nan, math.nan, math.nan, 0, 0)

        def of(sample: Sequence[int]) -> tuple[float, int]:
            threshold = math.fsum(final[s] for s in sample) / len(sample)
            found = [bisect_right(passed[s], -threshold) for s in sample]
            reached = sum(f < len(passed[s]) for f, s in zip(found, sample, strict=True))
            return math.fsum(min(f, steps) for f in found) / len(sample), reached

        mean_step, reached = of(seeds)
        draw = random.Random(0)
        again = sorted(
            steps / max(of(draw.choices(seeds, k=len(seeds)))[0], 1.0) for _ in range(self._resamples(seeds))
        )
        low, high = again[int(0.025 * len(again))], again[min(int(0.975 * len(again)), len(again) - 1)]
        return Speedup(steps / max(mean_step, 1.0), low, high, mean_step, reached, len(seeds))

    def own_speedups(self, name: str) -> list[float]:
        """Steps over the step at which each seed passes SGD's final loss on the same seed; those that do."""
        steps, runs = self.experiment.steps, self.by_schedule[name]
        found = []
        for seed, row in self.by_schedule[self.baseline.name].items():
            if seed in runs:
                step = first_below(runs[seed]["loss"], row["loss"][steps - 1])
                found += [] if step is None else [steps / max(step, 1)]
        return found

    def _resamples(self, seeds: Sequence[int]) -> int:
        # Each costs a look at every seed's curve; some hundreds settle two digits.
        return max(300, min(RESAMPLES, 40_000 // len(seeds)))

    def reach(self, name: str) -> Reach:
        """Steps until the held-out loss is within epsilon of the exact filter's."""
        steps: list[float] = []
        for row in self.by_schedule[name].values():
            found = first_below(row["held_out_loss"], row["filter_loss"] + self.epsilon)
            steps.append(math.inf if found is None else row["recorded"][found])
        if not steps:
            return Reach(math.nan, 0, 0)
        ordered = sorted(steps)
        return Reach(ordered[(len(ordered) - 1) // 2], sum(map(math.isfinite, steps)), len(steps))

    def best(self, method: str) -> Schedule:
        """The rate of a method with the lowest mean lowest held-out loss, among those where no seed diverged."""
        candidates = [s for s in self.experiment.schedules if s.method == method]
        whole = [s for s in candidates if self.diverged(s.name) == 0] or candidates
        return min(whole, key=lambda s: self.lowest_mean(s.name).mean)

    def compare(self, a: str, b: str, what: str) -> Paired:
        """Paired difference a − b of "loss" or "held_out_loss" at the end, or of the "lowest" held-out loss."""
        of_a, of_b = ((self.lowest(n) if what == "lowest" else self.finals(n, what)) for n in (a, b))
        both = [seed for seed in of_a if seed in of_b]
        return paired([of_a[s] for s in both], [of_b[s] for s in both])

    def filter_mean(self, column: str) -> float:
        values = {row["seed"]: row[column] for row in self.rows}
        return math.fsum(values.values()) / len(values)
