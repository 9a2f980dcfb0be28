"""What the numbers say, in words: does the model beat predictors that read no context, and how far is it from Bayes."""

import math
from dataclasses import dataclass

from ..evaluation.summary import MODEL
from .numbers import number
from .results import CONTEXT_FREE, Results

CLOSE = 0.03
"""Bits of KL below which predictions are called close to the exact posterior."""


@dataclass(frozen=True)
class Verdict:
    """One or two sentences, and a word for their colour: "close", "partial", "nothing" or "broken"."""

    kind: str
    text: str


def verdict(results: Results) -> Verdict:
    """Judge the model by KL, the score that is zero only for the exact posterior, seed by seed."""
    bugs = [text for text in results.warnings if "bug" in text]
    if bugs:
        return Verdict("broken", "These numbers cannot be right: " + "; ".join(bugs) + ".")
    score = results.summary("kl")
    if score.seeds == 0:
        return Verdict("broken", "Every seed diverged: there is nothing to score.")
    best = min(CONTEXT_FREE, key=lambda name: results.summary("kl", name).mean)
    level = results.summary("kl", best).mean
    distance = f"{number(score.mean)} bits of KL from the exact posterior"
    if score.low is not None and score.high is not None:
        distance += f" (95 % interval {number(max(score.low, 0.0))} to {number(score.high)}, {score.seeds} seeds)"
    beaten = _seeds_below(results, best)
    if beaten == 0:
        text = (
            f"The model shows no sign of using the context: it is {distance}, no closer than the {best} predictor "
            f"({number(level)} bits), which reads none."
        )
        return Verdict("nothing", text)
    ratio = level / score.mean if score.mean > 0 else math.inf
    times = f"{number(ratio, 2)} times closer" if 1.5 <= ratio < math.inf else "closer"
    seeds = "in every seed" if beaten == score.seeds else f"but in {beaten} of {score.seeds} seeds only"
    text = (
        f"Predictions are {distance}. The best predictor that reads no context ({best}) is {number(level)} bits away: "
        f"the model is {times}{f', {seeds}' if score.seeds > 1 else ''}."
    )
    text += _ladder(results)
    return Verdict("close" if score.mean <= CLOSE and beaten == score.seeds else "partial", text)


def _seeds_below(results: Results, reference: str) -> int:
    """In how many seeds, diverged ones apart, the model has a lower KL than the reference by more than rounding."""
    model, level = results.per_seed("kl", MODEL), results.per_seed("kl", reference)
    return sum(model[seed] < level[seed] * (1 - 1e-6) for seed in model if seed not in results.diverged)


def _ladder(results: Results) -> str:
    """Between which of the task's own reference predictors the model stands; empty where the task has none."""
    own = [name for name in results.comparable if name not in CONTEXT_FREE]
    mean = results.summary("kl").mean
    better = [name for name in own if results.summary("kl", name).mean <= mean]
    worse = [name for name in own if results.summary("kl", name).mean > mean]
    if not own:
        return ""
    parts = []
    if worse:
        parts.append(f"closer than “{worse[-1]}” ({number(results.summary('kl', worse[-1]).mean)} bits)")
    if better:
        parts.append(f"farther than “{better[0]}” ({number(results.summary('kl', better[0]).mean)} bits)")
    return f" Among the task's own untrained predictors, it is {' and '.join(parts)}."
