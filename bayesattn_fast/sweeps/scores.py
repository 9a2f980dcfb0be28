"""The rows of a sweep as arrays: final scores and curves by group, read a column at a time.

A group is one value of the columns in `by`; a stratum is one combination of the labels that are not in it (a tunnel,
say), so that intervals resample seeds within tasks. Runs that diverged are counted and left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .store import Store

LABELS = ("tunnel", "model", "schedule")
HIGHER_IS_BETTER = {"accuracy", "held_out_accuracy", "bayes_accuracy"}
CURVE = "_curve"


@dataclass(frozen=True)
class Runs:
    """Runs of a sweep that did not diverge, in one order of rows."""

    labels: dict[str, NDArray[Any]]
    seeds: NDArray[np.int64]
    scores: NDArray[np.float64]
    metric: str
    diverged: dict[str, int]
    """By group name, over `by` as it was asked for."""
    by: tuple[str, ...]
    rows: NDArray[np.int64]
    """Which row of the whole table each run is."""

    @property
    def lower_is_better(self) -> bool:
        return self.metric not in HIGHER_IS_BETTER

    def group_names(self) -> NDArray[Any]:
        return _joined([self.labels[name] for name in self.by], len(self.seeds))

    def task_names(self) -> NDArray[Any]:
        return _joined([v for k, v in self.labels.items() if k not in self.by], len(self.seeds))

    def strata(self, group: str) -> dict[str, NDArray[np.float64]]:
        """Scores of a group by task, in the order of the seeds."""
        mine, tasks = self.group_names() == group, self.task_names()
        found = {}
        for task in np.unique(tasks[mine]):
            at = np.flatnonzero(mine & (tasks == task))
            found[str(task)] = self.scores[at[np.argsort(self.seeds[at], kind="stable")]]
        return found

    def paired(self, a: str, b: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores of two groups on the same tasks and seeds; ValueError where they share none."""
        names, tasks = self.group_names(), self.task_names()
        of = [
            {(str(t), int(s)): x for t, s, x in zip(tasks[m], self.seeds[m], self.scores[m], strict=True)}
            for m in (names == a, names == b)
        ]
        both = [key for key in of[0] if key in of[1]]
        if not both:
            raise ValueError(f"{a} and {b} share no task and seed to compare")
        return np.array([of[0][k] for k in both]), np.array([of[1][k] for k in both])


def _joined(columns: Sequence[NDArray[Any]], count: int) -> NDArray[Any]:
    if not columns:
        return np.full(count, "all")
    return np.array([", ".join(map(str, values)) for values in zip(*columns, strict=True)])


def read_runs(folder: Path, metric: str, by: Sequence[str] = ()) -> Runs:
    """Final scores of a sweep. ValueError naming what may be asked for where metric or by is not in it."""
    store = Store(folder)
    axes = {name for cell in store.manifest()["cells"] for name in cell["labels"]}
    present = store.columns()
    if not present:
        raise ValueError(f"{folder} has no finished shards yet")
    labels = [name for name in present if name in axes or name in LABELS]
    known = numeric_columns(store)
    if metric not in known:
        raise ValueError(f"--metric must be one of {', '.join(known)}; got {metric!r}")
    for name in by:
        if name not in labels:
            raise ValueError(f"--by must name some of {', '.join(labels)}; got {name!r}")
    # A single value tells nothing apart; grouping by tunnel still shows it.
    columns = _read(store, [*labels, "seed", "diverged", metric])
    diverged = np.asarray(columns["diverged"]) >= 0
    scores = np.asarray([np.nan if v is None else v for v in columns[metric]], dtype=np.float64)
    out = diverged | ~np.isfinite(scores)
    all_labels = {name: np.asarray([str(v) for v in columns[name]]) for name in labels}
    chosen = tuple(by) or tuple(n for n in labels if len(np.unique(all_labels[n])) > 1) or tuple(labels[:1])
    groups = _joined([all_labels[name] for name in chosen], len(scores))
    lost = {str(name): int((out & (groups == name)).sum()) for name in np.unique(groups)}
    keep = np.flatnonzero(~out)
    kept = {name: values[keep] for name, values in all_labels.items()}
    return Runs(kept, np.asarray(columns["seed"])[keep], scores[keep], metric, lost, chosen, keep)


def numeric_columns(store: Store) -> list[str]:
    """Metrics that can be asked for: every column of one number a run but the labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names: dict[str, None] = {}
    axes = {name for cell in store.manifest()["cells"] for name in cell["labels"]}
    for path in store.shards[:64]:
        for field in pq.read_schema(path):
            if pa.types.is_floating(field.type) and field.name not in axes and field.name != "base":
                names[field.name] = None
    return list(names)


def read_curves(folder: Path, metric: str, runs: Runs) -> tuple[list[Any], list[Any]]:
    """(steps, values) of the metric for every run, a list of lists each. ValueError where it has no curve."""
    store = Store(folder)
    name = f"{metric}{CURVE}"
    present = store.columns()
    if name not in present:
        known = [column.removesuffix(CURVE) for column in present if column.endswith(CURVE)]
        raise ValueError(f"--metric {metric} has no curve over steps; these have: {', '.join(known)}")
    steps_name = "recorded" if metric == "train_loss" and "recorded" in present else "evaluated"
    columns = _read(store, [steps_name, name])
    return [columns[steps_name][i] for i in runs.rows], [columns[name][i] for i in runs.rows]


def _read(store: Store, names: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in names}
    for table in store.tables(names):
        for name in names:
            found[name] += table[name].to_pylist() if name in table.column_names else [None] * len(table)
    return found
