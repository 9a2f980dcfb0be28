"""What became slower since an earlier run on the same machine, and whether that is chance.

A machine is not as fast on one day as on another. The peers, which are timed in turns with ours and have not changed,
say by how much: the median over a case's peers of new / old is the drift, and ours is divided by it. The samples are
then compared by a two-sided rank test (Mann and Whitney 1947), corrected for the number of cases (Holm 1979).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .case import OURS
from .environment import hardware
from .record import TIMED, Record, Row

LEVEL = 0.01
"""Largest corrected p-value that is called a change."""
LEAST = 0.10
"""Smallest change that is called one."""


@dataclass(frozen=True)
class Change:
    """ratio: new / old milliseconds of ours, drift taken out. p: corrected. verdict: slower, faster or same."""

    row: Row
    before_ms: float
    after_ms: float
    drift: float
    ratio: float
    p: float
    verdict: str


def compare(before: Record, after: Record) -> list[Change]:
    """Every case of ours that both records timed, in the order of `after`.

    ValueError where they were made on different machines or with different numbers of threads, or share no case.
    """
    there, here = hardware(before.environment), hardware(after.environment)
    if there != here:
        raise ValueError(f"--against was measured on another machine: {there}; this is {here}")
    old: dict[tuple[str, ...], Row] = {(*row.case, row.contender): row for row in before.rows if row.status == TIMED}
    pairs = [
        (old[*row.case, OURS], row)
        for row in after.rows
        if row.contender == OURS and row.status == TIMED and (*row.case, OURS) in old
    ]
    if not pairs:
        raise ValueError("--against has no case in common with this run")
    drifts = [_drift(old, after.rows, row) for _, row in pairs]
    tested = [_p(a.samples, [t / d for t in b.samples]) for (a, b), d in zip(pairs, drifts, strict=True)]
    return [_change(a, b, d, p) for (a, b), d, p in zip(pairs, drifts, holm(tested), strict=True)]


def _drift(old: Mapping[tuple[str, ...], Row], rows: Sequence[Row], mine: Row) -> float:
    """How much slower the machine is now than then, by the peers of one case; 1 where it has none."""
    found = [
        row.median / was.median
        for row in rows
        if row.case == mine.case and row.contender != OURS and row.status == TIMED and row.median
        if (was := old.get((*row.case, row.contender))) and was.median
    ]
    return statistics.median(found) if found else 1.0


def _p(before: Sequence[float], after: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(before, after, alternative="two-sided").pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, step down."""
    made, floor = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        floor = max(floor, min(1.0, (len(values) - rank) * values[index]))
        made[index] = floor
    return made


def _change(before: Row, after: Row, drift: float, p: float) -> Change:
    assert before.median is not None
    assert after.median is not None
    ratio = after.median / before.median / drift
    # A change within either run's own spread is not told apart from it.
    least = 1 + max(LEAST, before.spread or 0.0, after.spread or 0.0)
    verdict = "same"
    if p <= LEVEL and ratio > least:
        verdict = "slower"
    elif p <= LEVEL and ratio < 1 / least:
        verdict = "faster"
    return Change(after, before.median, after.median, drift, ratio, p, verdict)
