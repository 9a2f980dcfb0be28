"""Running sums of metrics over held-out sequences, so that all of them never have to be held at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from .metrics import METRICS


@dataclass(frozen=True)
class Scores:
    """What one predictor scored: means over sequences at each position, seed by seed.

    by_position: (E, P) float64 on the CPU for every name of METRICS. sampled_loss_se (E,): standard error, in nats, of
    the mean over positions of sampled loss − Bayes floor; NaN for a single sequence.
    """

    by_position: Mapping[str, Tensor]
    sampled_loss_se: Tensor

    def mean(self, metric: str, positions: slice = slice(None)) -> Tensor:
        """The metric averaged over a run of scored positions, (E,)."""
        return self.by_position[metric][:, positions].mean(-1)

    def replace(self, values: Mapping[str, Tensor]) -> Self:
        """The same scores with some metrics put in place of those of this predictor's distributions."""
        return type(self)({**self.by_position, **{name: v.cpu() for name, v in values.items()}}, self.sampled_loss_se)


class Totals:
    """Sums of one predictor's pointwise metrics, in float64: the same result, up to rounding, in any split."""

    def __init__(self) -> None:
        self._sequences = 0
        self._sums: dict[str, Tensor] = {}
        self._excess = torch.zeros(())
        self._excess_squared = torch.zeros(())

    def add(self, scores: Mapping[str, Tensor]) -> None:
        """Take in a chunk: metric name → (E, B, P)."""
        self._sequences += next(iter(scores.values())).shape[1]
        for name, value in scores.items():
            chunk = value.sum(1)
            self._sums[name] = self._sums[name] + chunk if name in self._sums else chunk
        excess = (scores["sampled_loss"] - scores["bayes_floor"]).mean(-1)
        self._excess = self._excess.to(excess.device) + excess.sum(1)
        self._excess_squared = self._excess_squared.to(excess.device) + excess.square().sum(1)

    def result(self) -> Scores:
        """Means over everything added so far."""
        n = self._sequences
        means = {name: (total / n).cpu() for name, total in self._sums.items()}
        means["entropy_mae"] = (means["entropy_bits"] - means["bayes_entropy_bits"]).abs()
        variance = (self._excess_squared - self._excess.square() / n).clamp_min(0) / (n - 1 if n > 1 else torch.nan)
        return Scores({name: means[name] for name in METRICS}, (variance / n).sqrt().cpu())
