"""From scores of single seeds to statements: means with intervals over seeds, and signs that something is wrong."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .references import EXACT

MODEL = "model"
ROUNDING = 1e-6
"""Nats by which float32 truth and logits may put a loss below its floor."""
SIGNIFICANT = 5.0
"""Standard errors beyond which a difference is no accident."""
FEWEST_SEQUENCES = 30
"""Fewer give no standard error to speak of."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % t-interval; low and high are None where fewer than two seeds give a number."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    def __str__(self) -> str:
        seeds = f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"
        mean = f"{self.mean if abs(self.mean) > 1e-9 else 0:.3g}"  # what rounding left of zero is zero
        if self.high is None:
            return f"{mean} ({seeds})"
        return f"{mean} ± {self.high - self.mean:.2g} (95 % interval, {seeds})"


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval of one number per seed; NaN, the mark of a diverged seed, is left out.

    The mean is NaN when nothing is left, infinite without an interval when a value is.
    """
    finite = [value for value in values if not math.isnan(value)]
    n = len(finite)
    if n == 0:
        return Interval(math.nan, None, None, 0)
    mean = math.fsum(finite) / n if all(map(math.isfinite, finite)) else math.inf
    if n == 1 or math.isinf(mean):
        return Interval(mean, None, None, n)
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (n - 1))
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def find_warnings(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What in the rows of span "all" cannot be right, one sentence per finding with the seeds it concerns.

    A loss in expectation below the Bayes floor is impossible; so is a loss on sampled answers below it by more than
    chance, unless the model sees the answers. The exact posterior is held to the same test.
    """
    findings: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        finding = _finding(row)
        if finding and row["seed"] not in findings[finding]:
            findings[finding].append(row["seed"])
    return [
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}: {finding}"
        for finding, seeds in findings.items()
    ]


def beats_floor(row: Mapping[str, Any]) -> bool:
    """Whether the loss on sampled answers is below the Bayes floor by more than chance: only with other knowledge."""
    return row["sampled_loss"] - row["bayes_floor"] < -_chance(row)


def _chance(row: Mapping[str, Any]) -> float:
    few = row["sequences"] < FEWEST_SEQUENCES
    return math.inf if few else SIGNIFICANT * row["sampled_loss_se"] + ROUNDING


def _finding(row: Mapping[str, Any]) -> str | None:
    if row["predictor"] == EXACT:
        if math.isinf(row["sampled_loss"]):
            return "the tunnel drew answers that its exact predictive rules out: a bug of the tunnel"
        if abs(row["sampled_loss"] - row["bayes_floor"]) > _chance(row):
            return "the tunnel's sampled answers do not follow its exact predictive: a bug of the tunnel"
    if row["predictor"] == MODEL:
        if row["diverged"] is not None:
            return f"diverged at step {row['diverged']}, frozen there and left out of means over seeds"
        if math.isnan(row["loss"]):
            return "predictions are not finite; left out of means over seeds"
        if row["gap"] < -ROUNDING:
            return "the loss is below the Bayes floor, which is impossible: a bug"
        if beats_floor(row):
            return (
                "the loss on sampled answers is below the Bayes floor by more than chance allows: "
                "a bug, most likely a model that sees the answers"
            )
    return None
