"""What a sweep says: tables of estimates, comparisons, steps to a threshold, and the seeds a given precision takes."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ..report.formats import PlainTable
from ..statistics import (
    STATISTICS,
    Estimate,
    estimate,
    first_reach,
    holm,
    improvement,
    median_task,
    paired,
    seeds_needed,
    steps_to_threshold,
)
from ..statistics.estimates import Strata
from .scores import Runs, read_curves


def group_list(runs: Runs) -> list[str]:
    """Groups in order of their names, those that lost every run too."""
    return list(runs.diverged)


def estimates_table(runs: Runs) -> PlainTable:
    """Mean, median and interquartile mean of every group with 95 % stratified-bootstrap intervals.

    Where a group spans several tasks, the median of the tasks' means stands beside them.
    """
    estimators: dict[str, Callable[[Strata], Estimate]] = {
        name: partial(estimate, statistic=of) for name, of in STATISTICS.items()
    }
    if any(len(runs.strata(group)) > 1 for group in group_list(runs)):
        estimators["median task"] = median_task
    rows = []
    for group in group_list(runs):
        strata = list(runs.strata(group).values())
        values = [tuple(of(strata)[:3]) if strata else None for of in estimators.values()]
        rows.append([group, *values, sum(map(len, strata)), len(strata), runs.diverged[group]])
    title = f"{runs.metric} by {', '.join(runs.by)}: value [95 % stratified bootstrap]"
    return PlainTable(title, [", ".join(runs.by), *estimators, "runs", "tasks", "diverged"], rows)


def comparison_table(runs: Runs, groups: Sequence[str]) -> PlainTable:
    """Every pair of the named groups: paired tests with Holm's correction and probability of improvement.

    ValueError for fewer than two groups or a name that is none.
    """
    known = group_list(runs)
    for name in groups:
        if name not in known:
            raise ValueError(
                f"--compare must name groups of --by {' '.join(runs.by)}: {', '.join(known)}; got {name!r}"
            )
    if len(set(groups)) < 2:
        raise ValueError(f"--compare takes at least two different groups of: {', '.join(known)}")
    pairs, found = list(combinations(dict.fromkeys(groups), 2)), []
    for a, b in pairs:
        x, y = runs.paired(a, b)
        strata = runs.strata(a), runs.strata(b)
        shared = [task for task in strata[0] if task in strata[1]]
        sign = -1.0 if runs.lower_is_better else 1.0
        better = improvement(*([sign * of[task] for task in shared] for of in strata))
        found.append((paired(x, y), better))
    t, wilcoxon = (holm([getattr(pair, name) for pair, _ in found]) for name in ("p_t", "p_wilcoxon"))
    rows = [
        [f"{a} − {b}", tuple(pair.difference[:3]), p_t, p_w, pair.effect, tuple(better[:3]), pair.difference.seeds]
        for (a, b), (pair, better), p_t, p_w in zip(pairs, found, t, wilcoxon, strict=True)
    ]
    columns = ["pair", "difference", "p (t, Holm)", "p (Wilcoxon, Holm)", "Cohen's d", "P(first better)", "pairs"]
    order = "lower" if runs.lower_is_better else "higher"
    return PlainTable(f"{runs.metric}, paired by task and seed; {order} is better", columns, rows)


def threshold_table(runs: Runs, folder: Path, threshold: float) -> PlainTable:
    """Steps until the metric is at the threshold or better, runs that never are being censored at their last step."""
    steps, curves = read_curves(folder, runs.metric, runs)
    reached = np.array(
        [
            first_reach(curve, at, threshold, lower_is_better=runs.lower_is_better)
            for curve, at in zip(curves, steps, strict=True)
        ]
    )
    last = np.array([at[-1] for at in steps])
    names = runs.group_names()
    rows: list[list[Any]] = []
    for group in group_list(runs):
        mine = names == group
        if not mine.any():
            rows.append([group, None, 0, 0, runs.diverged[group]])
            continue
        found = steps_to_threshold(reached[mine], last[mine])
        rows.append([group, tuple(found[:3]), found.reached, found.runs - found.reached, runs.diverged[group]])
    sign = "≤" if runs.lower_is_better else "≥"
    title = f"steps until {runs.metric} {sign} {threshold:g}: Kaplan–Meier median [95 %]"
    return PlainTable(title, [", ".join(runs.by), "steps", "reached", "censored", "diverged"], rows)


def precision_table(runs: Runs, width: float) -> PlainTable:
    """Seeds of each task for a 95 % interval of the mean of that width."""
    rows = []
    for group in group_list(runs):
        for task, scores in runs.strata(group).items():
            needed = seeds_needed(scores, width) if len(scores) > 1 else None
            rows.append([group, task, float(np.std(scores, ddof=1)) if len(scores) > 1 else None, len(scores), needed])
    title = f"seeds for a 95 % interval of the mean of {runs.metric} no wider than {width:g}"
    return PlainTable(title, [", ".join(runs.by), "task", "deviation", "seeds", "seeds needed"], rows)
