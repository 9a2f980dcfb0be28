"""report.html of a benchmark: the pictures, every case with its peers, what it was measured on. Nothing is fetched."""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..evaluation.metrics import Metric
from ..report.numbers import number
from ..report.page import Grid, Line, Picture, Section, render
from .case import OURS
from .figures import write_figures
from .record import MISSING, TIMED, Record, Row
from .table import lines, mebibytes, note, rate, share

CAPTIONS = {
    "roofline": (
        "Roofline",
        "Our implementations under the limits that this run measured. Left: operations are multiplications and "
        "additions; the rising roof is the fastest copy (in a cache), the dotted one copying from memory, the flat "
        "ones matrix products. A triangle's own roof is the rate of exponentials, which is not drawn: the tables give "
        "its share of it. Right: bytes that a call must read and write at least, over its time.",
    ),
    "curves": (
        "Speed against length",
        "Positions a second of single calls; bands hold the middle three fifths of them. About the same number of "
        "positions at every length, so that a flat line is time linear in the length. Both axes are logarithmic.",
    ),
}
COLUMNS = (
    Metric("median", "ms", "Of one call, or of the whole case's work where a peer is given a part of it."),
    Metric("× ours", "", "How many times as long as ours for the same work."),
    Metric("spread", "of the median", "From the 20th to the 80th percentile of the calls."),
    Metric("rate", "", "Positions, sequences, rows or steps a second, whatever the case works on."),
    Metric("of the limit", "", "Shortest time that the measured limits allow, over the median."),
    Metric("error", "relative", "Largest relative error of any result against float64."),
    Metric("peak memory", "MiB", "Growth during one call, results included."),
)


def write_page(record: Record, folder: Path) -> Path:
    """The pictures in folder/figures and report.html beside them; returns the path of the page."""
    figures = write_figures(record, folder / "figures")
    pictures = [_picture(name, path) for name, path in figures.items()]
    found = record.environment
    on = found["gpu"]["name"] if "gpu" in found else f"{found['processor']}, {found['threads']} thread(s)"
    count = len(list(record.cases()))
    lead = f"{count} cases on {on}, {found['date']}; each was compared with float64 before it was timed."
    sections = [
        Section(warnings=[f"{row.op} {row.work}, {row.sizes}: {note(row)}" for row in record.faults]),
        Section("Pictures", pictures=pictures) if pictures else Section(),
        *_op_sections(record),
        Section("How it was measured", texts=list(lines(record))),
    ]
    return render(folder / "report.html", "Kernels beside their peers", lead, sections)


def _picture(name: str, path: Path) -> Picture:
    return Picture(*CAPTIONS[name], base64.b64encode(path.read_bytes()).decode())


def _op_sections(record: Record) -> Iterator[Section]:
    by_op: dict[str, list[Line]] = {}
    for rows in record.cases():
        by_op.setdefault(rows[0].op, []).extend(_case_lines(rows))
    for op, made in by_op.items():
        yield Section(op, tables=[Grid("case", COLUMNS, made)])


def _case_lines(rows: Sequence[Row]) -> Iterator[Line]:
    for row in rows:
        if row.status == MISSING:
            continue
        mine = row.contender == OURS
        name = f"{row.work}, {row.precision}: {row.sizes}" if mine else row.contender
        wrong = "" if row.status == TIMED else f" ({note(row)})"
        cells = (
            number(row.whole_ms), "" if mine else number(row.ratio), "" if row.spread is None else f"{row.spread:.0%}",
            rate(row), share(row), number(row.error), mebibytes(row),
        )  # fmt: skip
        yield Line("mean" if mine else "reference", f"{name}{wrong}", cells)
