"""Every op against float64 on a device: the benchmark's cases at small and odd sizes, without peers or clocks."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..backends import BackendUnavailable
from ..report.numbers import number
from .case import OURS, Case
from .record import FAILED, MISSING, REFUSED, RIGHT, Row
from .runner import check, one_line, served

if TYPE_CHECKING:
    from rich.table import Table

VERDICTS = {RIGHT: "", REFUSED: "WRONG", FAILED: "FAILED", MISSING: "not served"}


def verify(
    cases: Iterable[Case], device: torch.device, seed: int, on_case: Callable[[Row], None] | None = None
) -> list[Row]:
    """One row of ours a case that `device` can take: right, refused (it errs too much), failed, or missing.

    Missing is what the back end in force does not serve; it is no fault.
    """
    rows = []
    for case in cases:
        if device.type not in case.devices:
            continue
        rows.append(_row(case, device, seed))
        if on_case:
            on_case(rows[-1])
    return rows


def _row(case: Case, device: torch.device, seed: int) -> Row:
    try:
        by = served(case, device)
    except BackendUnavailable as reason:
        return Row.of(case, OURS, MISSING, reason=str(reason))
    try:
        checked = check(case, device, seed, peers=False, full=True)
    except Exception as error:  # one op that cannot be tried must not hide the others
        return Row.of(case, OURS, FAILED, served=by, reason=one_line(error))
    return checked.rows.get(OURS) or Row.of(case, OURS, RIGHT, served=by, error=checked.errors[OURS])


def faults(rows: Iterable[Row]) -> list[Row]:
    """What is wrong or raised."""
    return [row for row in rows if row.status in (REFUSED, FAILED)]


def table(rows: Iterable[Row]) -> "Table":
    """A line a case: op, work, sizes, precision, who served it, its error and the limit."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("op", "work", "sizes", "precision", "served by"):
        made.add_column(name, overflow="fold")
    for name in ("error", "limit"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("")
    for row in rows:
        error = number(row.error)
        cells = (row.op, row.work, row.sizes, row.precision, row.served, error, number(row.tolerance))
        made.add_row(*cells, VERDICTS[row.status], style="red" if row.status in (REFUSED, FAILED) else "")
    return made


def as_dict(row: Row) -> dict[str, Any]:
    """Plain data for JSON; an error that is not finite is null."""
    error = row.error if row.error is not None and row.error < float("inf") else None
    fields = ("op", "work", "sizes", "precision", "served", "status", "reason")
    return {**{name: getattr(row, name) for name in fields}, "error": error, "limit": row.tolerance}
