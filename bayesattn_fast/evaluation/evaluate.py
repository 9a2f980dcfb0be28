"""Score a predictor against the exact posterior on fresh held-out sequences, beside the reference predictors.

evaluation = evaluate(model, tunnel, seeds=range(3))
evaluation.summary("kl")                      # mean and 95 % interval over seeds, bits
evaluation.summary("kl", "best constant")     # the same of a predictor that learnt nothing
write_table("metrics.parquet", evaluation.to_rows(step=4000))
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..tunnels.protocol import Batch, Stream, Tunnel
from .metrics import METRICS, log_of, log_probabilities, normalised, pointwise, truth_scores
from .references import (
    BEST_CONSTANT,
    EXACT,
    POSITION_ONLY,
    best_constant_entropy,
    best_position_entropy,
    common_references,
)
from .summary import MODEL, Interval, find_warnings, interval
from .totals import Scores, Totals

Predict = Callable[[Tensor], Tensor]
"""inputs (E, b, N) or (E, b, N, d_in) → logits (E, b, P, C) at the tunnel's scored positions."""

INPUTS_AT_ONCE = 1 << 16
"""Input positions, over all seeds, of one chunk when none is asked for: bounds the activations of a forward pass."""


@dataclass(frozen=True)
class Evaluation:
    """What a model and the reference predictors scored on the same held-out sequences.

    tunnel: the task; seeds: E of them, the first axis of every tensor; sequences: per seed; trained: how many of the P
    scored positions training covered; predictors: scores by name, "model" first; diverged: seed → step at which it
    was frozen, left out of means over seeds.
    """

    tunnel: Tunnel
    seeds: tuple[int, ...]
    sequences: int
    trained: int
    predictors: dict[str, Scores]
    diverged: Mapping[int, int] = field(default_factory=dict)

    @property
    def scored(self) -> int:
        """P, scored positions of a sequence."""
        return len(self.tunnel.positions)

    @property
    def spans(self) -> dict[str, slice]:
        """The runs of positions that are averaged: "all"; "trained" and "beyond" too where they differ."""
        spans = {"all": slice(None)}
        if self.trained < self.scored:
            spans |= {"trained": slice(0, self.trained), "beyond": slice(self.trained, None)}
        return spans

    @property
    def overall(self) -> dict[str, Tensor]:
        """The model's scores over all positions by metric, each (E,) float64."""
        return {metric: self.per_seed(metric) for metric in METRICS}

    def per_seed(self, metric: str, predictor: str = MODEL, span: str = "all") -> Tensor:
        """Mean of the metric over sequences and the positions of the span, (E,) float64."""
        return self.predictors[predictor].mean(metric, self.spans[span])

    def summary(self, metric: str, predictor: str = MODEL, span: str = "all") -> Interval:
        """Mean over seeds with its 95 % t-interval, which one seed does not have."""
        values = zip(self.seeds, self.per_seed(metric, predictor, span).tolist(), strict=True)
        return interval([value for seed, value in values if seed not in self.diverged])

    def to_rows(self, step: int = 0) -> list[dict[str, Any]]:
        """Tidy rows for metrics.parquet.

        Columns: seed, step (of training), predictor, scored (P, which tells lengths apart), trained (how many of them
        training covered), sequences, span ("position", "all", "trained" or "beyond"), position (1-based; null but for
        span "position"), diverged (the step, or null), the metrics, sampled_loss_se (null but for span "all").
        """
        rows: list[dict[str, Any]] = []
        for name, scores in self.predictors.items():
            by_position = {metric: scores.by_position[metric].tolist() for metric in METRICS}
            for e, seed in enumerate(self.seeds):
                head = self._head(step, name, seed)
                rows += self._span_rows(head, scores, e)
                for k in range(self.scored):
                    values = {metric: by_position[metric][e][k] for metric in METRICS}
                    rows.append(head | {"span": "position", "position": k + 1} | values | {"sampled_loss_se": None})
        return rows

    def _head(self, step: int, predictor: str, seed: int) -> dict[str, Any]:
        return {
            "seed": seed,
            "step": step,
            "predictor": predictor,
            "scored": self.scored,
            "trained": self.trained,
            "sequences": self.sequences,
            "diverged": self.diverged.get(seed),
        }

    def _span_rows(self, head: dict[str, Any], scores: Scores, e: int) -> Iterator[dict[str, Any]]:
        for span, part in self.spans.items():
            values = {metric: float(scores.by_position[metric][e, part].mean()) for metric in METRICS}
            error = float(scores.sampled_loss_se[e]) if span == "all" else None
            yield head | {"span": span, "position": None} | values | {"sampled_loss_se": error}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Signs of a bug or of a diverged seed, one sentence each; empty when all is well."""
        rows = (
            row
            for name, scores in self.predictors.items()
            for e, seed in enumerate(self.seeds)
            for row in self._span_rows(self._head(0, name, seed), scores, e)
        )
        return tuple(find_warnings(row for row in rows if row["span"] == "all"))


@torch.no_grad()
def evaluate(
    predict: Predict,
    tunnel: Tunnel,
    seeds: Sequence[int],
    *,
    sequences: int = 2048,
    chunk: int | None = None,
    trained: int | None = None,
    diverged: Mapping[int, int] | None = None,
    references_of: Evaluation | None = None,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Score `predict` and the reference predictors on `sequences` held-out sequences of every seed.

    predict: inputs (E, b, N[, d_in]) → logits or log-probabilities (E, b, P, C); the caller has put the model into
    evaluation mode. chunk: sequences per seed in one call of predict; it changes memory, not results. trained: how many
    scored positions training covered, where the tunnel is longer than that. diverged: seed → step of the seeds that
    training froze. references_of: an earlier evaluation on the same sequences, whose reference scores are taken over:
    they do not change during training, and are most of the work for a small model. The sequences are those of
    Stream.HELD_OUT, step 0, which training never draws.

    Raises ValueError for an empty request and for logits of another shape.
    """
    seeds = tuple(seeds)
    scored = len(tunnel.positions)
    trained = scored if trained is None else min(trained, scored)
    for name, value in (("seeds", len(seeds)), ("sequences", sequences), ("trained", trained)):
        if value < 1:
            raise ValueError(f"{name} must hold at least 1; got {value}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1; got {chunk}")
    chunk = chunk or max(1, INPUTS_AT_ONCE // (len(seeds) * tunnel.length))

    def batches() -> Iterator[Batch]:
        for first in range(0, sequences, chunk):
            size = min(chunk, sequences - first)
            yield tunnel.sample(seeds, 0, size, stream=Stream.HELD_OUT, first=first, device=device)

    known = _reusable(references_of, tunnel, seeds, sequences)
    references: dict[str, Tensor] = {}
    if not known:
        # The best constant predictors need the whole truth before any of it is scored; drawing it twice is cheap.
        mean_predictive, entropies = _truth(batches(), sequences)
        references = common_references(mean_predictive)
    totals: dict[str, Totals] = {}
    for batch in batches():
        p = normalised(batch.predictive)
        truth = truth_scores(p, batch.targets)
        totals.setdefault(MODEL, Totals()).add(pointwise(_log_q(predict, batch), p, batch.targets, truth))
        for name, log_q in () if known else _reference_predictions(tunnel, batch, references, p):
            totals.setdefault(name, Totals()).add(pointwise(log_q.expand_as(p), p, batch.targets, truth))
    results = {name: total.result() for name, total in totals.items()} | known
    if not known:
        results[BEST_CONSTANT] = results[BEST_CONSTANT].replace(best_constant_entropy(entropies))
        results[POSITION_ONLY] = results[POSITION_ONLY].replace(best_position_entropy(entropies))
    return Evaluation(tunnel, seeds, sequences, trained, results, dict(diverged or {}))


def _reusable(earlier: Evaluation | None, tunnel: Tunnel, seeds: tuple[int, ...], sequences: int) -> dict[str, Scores]:
    """Scores of the references in an earlier evaluation; ValueError where it was of other held-out sequences."""
    if earlier is None:
        return {}
    if (earlier.tunnel, earlier.seeds, earlier.sequences) != (tunnel, seeds, sequences):
        raise ValueError("references_of must be an evaluation of the same tunnel, seeds and number of sequences")
    return {name: scores for name, scores in earlier.predictors.items() if name != MODEL}


def _truth(batches: Iterator[Batch], sequences: int) -> tuple[Tensor, Tensor]:
    """The mean predictive (E, P, C) float64, and the Bayes entropy of every sequence (E, S, P) float32 on the CPU."""
    total: Tensor | float = 0.0
    entropies = []
    for batch in batches:
        total = total + batch.predictive.sum(1, dtype=torch.float64)
        entropies.append(batch.entropy.to("cpu", torch.float32))
    assert isinstance(total, Tensor)
    return total / sequences, torch.cat(entropies, dim=1)


def _log_q(predict: Predict, batch: Batch) -> Tensor:
    logits = predict(batch.inputs)
    if logits.shape != batch.predictive.shape:
        raise ValueError(
            f"predict must return logits (E, b, P, C) = {tuple(batch.predictive.shape)}; got {tuple(logits.shape)}"
        )
    return log_probabilities(logits)


def _reference_predictions(
    tunnel: Tunnel, batch: Batch, references: dict[str, Tensor], p: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """ln q of every reference on a batch, one at a time so that one is held at a time."""
    for name, probabilities in references.items():
        yield name, log_of(probabilities)
    for name, probabilities in tunnel.reference_predictors(batch).items():
        yield name, log_of(probabilities)
    yield EXACT, p.log()
