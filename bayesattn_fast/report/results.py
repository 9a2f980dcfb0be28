"""Rows of metrics.parquet as something to ask questions of: one evaluation, at one step and one length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..evaluation.metrics import METRICS
from ..evaluation.references import BEST_CONSTANT, EXACT, POSITION_ONLY, UNIFORM
from ..evaluation.summary import MODEL, Interval, beats_floor, find_warnings, interval

Row = Mapping[str, Any]

COLUMNS = (
    "seed",
    "step",
    "predictor",
    "scored",
    "trained",
    "sequences",
    "span",
    "position",
    "diverged",
    "sampled_loss_se",
    *METRICS,
)
CONTEXT_FREE = (UNIFORM, BEST_CONSTANT, POSITION_ONLY)
"""References that read no context: a model that does not beat them has learnt nothing."""


@dataclass(frozen=True)
class Results:
    """One evaluation: the rows of one training step and one number of scored positions.

    steps and lengths tell what else the table holds.
    """

    rows: Sequence[Row]
    step: int
    scored: int
    steps: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], step: int | None = None, scored: int | None = None) -> Self:
        """The evaluation at `step` (the last unless told) and `scored` positions (the shortest unless told).

        ValueError where the rows hold no such evaluation, or lack a column.
        """
        rows = [row for row in rows if row]
        if not rows:
            raise ValueError("the table of metrics has no rows")
        if missing := [name for name in COLUMNS if name not in rows[0]]:
            raise ValueError(f"the table of metrics lacks {', '.join(missing)}")
        steps = tuple(sorted({row["step"] for row in rows}))
        step = steps[-1] if step is None else step
        chosen = [row for row in rows if row["step"] == step]
        lengths = tuple(sorted({row["scored"] for row in chosen}))
        if not chosen:
            raise ValueError(f"the table of metrics has no step {step}; it has {', '.join(map(str, steps))}")
        scored = lengths[0] if scored is None else scored
        chosen = [row for row in chosen if row["scored"] == scored]
        if not any(row["predictor"] == MODEL for row in chosen):
            raise ValueError(f"the table of metrics has no rows of the model at step {step}, {scored} scored positions")
        return cls(chosen, step, scored, steps, lengths)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(row["seed"] for row in self.rows))

    @property
    def diverged(self) -> dict[int, int]:
        """Seed → step at which training froze it."""
        return {row["seed"]: row["diverged"] for row in self.rows if row["diverged"] is not None}

    @property
    def sequences(self) -> int:
        """Held-out sequences per seed."""
        return self.rows[0]["sequences"]

    @property
    def references(self) -> tuple[str, ...]:
        """All predictors but the model: farthest (in KL) first; exact posterior and informed ones last."""
        names = [name for name in dict.fromkeys(row["predictor"] for row in self.rows) if name != MODEL]
        late = (EXACT, *self.informed)
        return tuple(
            sorted(names, key=lambda name: (name in late, name in self.informed, -self.summary("kl", name).mean))
        )

    @property
    def comparable(self) -> tuple[str, ...]:
        """The references to beat: neither the exact posterior nor told more than the inputs show."""
        return tuple(name for name in self.references if name != EXACT and name not in self.informed)

    @property
    def informed(self) -> tuple[str, ...]:
        """References told more than the inputs show: their loss on sampled answers is below the Bayes floor.

        Their distance from the posterior measures what they are told, not how well they reason.
        """
        rows = [row for row in self.rows if row["span"] == "all" and row["predictor"] not in (MODEL, EXACT)]
        return tuple(dict.fromkeys(row["predictor"] for row in rows if beats_floor(row)))

    @property
    def spans(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row["span"] for row in self.rows if row["span"] != "position"))

    @property
    def trained(self) -> int:
        """How many of the scored positions training covered."""
        return self.rows[0]["trained"]

    @property
    def warnings(self) -> list[str]:
        """Signs of a bug or of a diverged seed, one sentence each."""
        return find_warnings(row for row in self.rows if row["span"] == "all")

    def per_seed(self, metric: str, predictor: str = MODEL, span: str = "all") -> dict[int, float]:
        """Seed → mean over sequences and the positions of the span."""
        return {row["seed"]: row[metric] for row in self.rows if row["predictor"] == predictor and row["span"] == span}

    def summary(self, metric: str, predictor: str = MODEL, span: str = "all") -> Interval:
        """Mean and 95 % interval over the seeds that did not diverge."""
        diverged = self.diverged
        values = self.per_seed(metric, predictor, span)
        return interval([value for seed, value in values.items() if seed not in diverged])

    def curve(self, metric: str, predictor: str = MODEL) -> dict[int, list[float]]:
        """Seed → means over sequences at scored positions 1 … P."""
        curves: dict[int, list[float]] = {seed: [] for seed in self.seeds}
        chosen = [row for row in self.rows if row["predictor"] == predictor and row["span"] == "position"]
        for row in sorted(chosen, key=lambda row: row["position"]):
            curves[row["seed"]].append(row[metric])
        return curves

    def mean_curve(self, metric: str, predictor: str = MODEL) -> list[Interval]:
        """Mean and 95 % interval over seeds at scored positions 1 … P."""
        diverged = self.diverged
        kept = [values for seed, values in self.curve(metric, predictor).items() if seed not in diverged]
        return [interval(values) for values in zip(*kept, strict=True)] or [interval([])] * self.scored
