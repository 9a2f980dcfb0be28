"""A benchmark's results: one row a contender and case, with the machine, the limits and the versions; JSON and CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..storage import read_json, write_json, write_text
from .case import OURS, Case
from .timing import NOISY

FORMAT = 1
TIMED, REFUSED, FAILED, MISSING = "timed", "refused", "failed", "missing"
RIGHT = "right"
"""Compared with float64 and not timed (verify.py)."""


@dataclass(frozen=True)
class Row:
    """One contender in one case. Times in milliseconds of one call, bytes and operations of the case's work.

    status: timed; refused (its results are wrong, so it was not timed); failed (it raised); missing (not installed).
    ratio: its time over ours for the same work. floor_ms: the shortest time that the machine's limits allow.
    """

    op: str
    work: str
    sizes: str
    precision: str
    size: str
    contender: str
    status: str
    reason: str = ""
    served: str = ""
    error: float | None = None
    tolerance: float | None = None
    best: float | None = None
    p20: float | None = None
    median: float | None = None
    p80: float | None = None
    runs: int = 0
    share: float = 1.0
    ratio: float | None = None
    unit: str = ""
    amount: int = 0
    bytes: float = 0.0
    operations: float = 0.0
    exps: float = 0.0
    floor_ms: float | None = None
    limit: str = ""
    peak_bytes: int | None = None
    curve: str = ""
    length: int | None = None
    samples: tuple[float, ...] = ()

    @classmethod
    def of(cls, case: Case, contender: str, status: str, **more: Any) -> "Row":
        """A row with everything that the case decides."""
        return cls(
            case.op, case.work, case.sizes, case.precision, case.size, contender, status,
            unit=case.unit, amount=case.amount, tolerance=case.tolerance, bytes=case.cost.bytes,
            operations=case.cost.operations, exps=case.cost.exps, curve=case.curve,
            length=case.shape[case.curve] if case.curve else None, **more,
        )  # fmt: skip

    @property
    def case(self) -> tuple[str, str, str, str]:
        """What tells cases apart: op, work, precision, sizes."""
        return self.op, self.work, self.precision, self.sizes

    @property
    def whole_ms(self) -> float | None:
        """Milliseconds for the whole of the case's work, where one call does a share of it."""
        return None if self.median is None else self.median / self.share

    @property
    def per_second(self) -> float | None:
        """Units a second."""
        return None if self.whole_ms is None else 1e3 * self.amount / self.whole_ms

    @property
    def spread(self) -> float | None:
        """(p80 − p20) / median."""
        if self.median is None or self.p20 is None or self.p80 is None:
            return None
        return (self.p80 - self.p20) / self.median

    @property
    def noisy(self) -> bool:
        """Whether the spread exceeds 20 %."""
        return self.spread is not None and self.spread > NOISY

    @property
    def of_limit(self) -> float | None:
        """Share of the limiting resource that was reached."""
        return None if self.floor_ms is None or self.whole_ms is None else self.floor_ms / self.whole_ms


@dataclass(frozen=True)
class Record:
    """All rows of one run and what they depend on (`environment.environment`, `limits.Limits`)."""

    environment: dict[str, Any]
    limits: dict[str, Any]
    settings: dict[str, Any]
    rows: tuple[Row, ...] = field(default=())

    def cases(self) -> Iterator[tuple[Row, ...]]:
        """The rows of each case, ours first."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.case, []).append(row)
        for rows in groups.values():
            yield tuple(sorted(rows, key=lambda row: row.contender != OURS))

    @property
    def faults(self) -> list[Row]:
        """Rows of ours that were refused, and of anyone that failed."""
        return [row for row in self.rows if row.status == FAILED or (row.status == REFUSED and row.contender == OURS)]


def save(record: Record, folder: Path) -> tuple[Path, Path]:
    """results.json and results.csv in `folder`, which is made; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", as_dict(record))
    write_text(folder / "results.csv", as_csv(record.rows))
    return folder / "results.json", folder / "results.csv"


def as_dict(record: Record) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "format": FORMAT,
        "environment": record.environment,
        "limits": record.limits,
        "settings": record.settings,
        "rows": [_plain(row) for row in record.rows],
    }


def load(path: Path | str) -> Record:
    """A record from its results.json, or from the folder that holds it. ValueError where it is not one."""
    path = Path(path)
    path = path / "results.json" if path.is_dir() else path
    data = read_json(path)
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"{path} has format {data['format']}; this version reads {FORMAT}")
        rows = tuple(Row(**{**row, "samples": tuple(row["samples"])}) for row in data["rows"])
        return Record(data["environment"], data["limits"], data["settings"], rows)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the result of bayesattn bench: {error}") from None


def as_csv(rows: Sequence[Row]) -> str:
    """A line a row, all fields but the single samples, with what is derived from them."""
    names = [f.name for f in fields(Row) if f.name != "samples"]
    derived = ("per_second", "spread", "noisy", "of_limit")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *derived])
    for row in rows:
        values = [getattr(row, name) for name in (*names, *derived)]
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    return text.getvalue()


def _plain(row: Row) -> dict[str, Any]:
    found = asdict(row)
    found["samples"] = [float(f"{value:.5g}") for value in row.samples]
    error = found["error"]
    found["error"] = None if error is None or error == float("inf") else error
    return found
