"""Results for the terminal: a block a case, ours first, and what must be said about it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..report.numbers import number
from .case import OURS
from .record import FAILED, MISSING, REFUSED, TIMED, Record, Row

if TYPE_CHECKING:
    from rich.table import Table


def milliseconds(row: Row) -> str:
    """Median and the range of the middle three fifths: "1.23 [1.20, 1.31]"."""
    if row.median is None:
        return "–"
    share = row.share
    return f"{number(row.median / share)} [{number((row.p20 or 0) / share)}, {number((row.p80 or 0) / share)}]"


def rate(row: Row) -> str:
    """Units a second with a prefix: "4.1 M/s"."""
    value = row.per_second
    if value is None:
        return "–"
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{number(value / size)}{letter}/s"
    return f"{number(value)} /s"


def mebibytes(row: Row) -> str:
    """Peak memory."""
    return "–" if row.peak_bytes is None else number(row.peak_bytes / 2**20, 2)


def note(row: Row) -> str:
    """What is wrong or unusual about a row, in a few words."""
    if row.status in (REFUSED, FAILED):
        return f"{row.status}: {row.reason}"
    if row.noisy:
        return f"spread {row.spread:.0%}"
    return ""


def share(row: Row) -> str:
    """ "67 % of exp"."""
    return "" if row.of_limit is None else f"{row.of_limit:.0%} of {row.limit}"


def case_table(rows: Sequence[Row]) -> "Table":
    """One case: contender, milliseconds, rate, times ours, share of the limit, error, memory, notes."""
    from rich import box
    from rich.table import Table

    first = rows[0]
    title = f"{first.op} {first.work}, {first.precision}: {first.sizes}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1), pad_edge=False)
    table.add_column("contender", overflow="fold")
    for name in ("ms [p20, p80]", first.unit, "× ours", "of the limit", "error", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        if row.status == MISSING:
            continue
        name = f"{OURS} ({row.served})" if row.contender == OURS and row.served else row.contender
        times = number(row.ratio) if row.contender != OURS else ""
        style = "bold" if row.contender == OURS else ""
        if row.status in (REFUSED, FAILED):
            style = "red"
        error = number(row.error, 2)
        cells = (milliseconds(row), rate(row), times, share(row), error, mebibytes(row), note(row))
        table.add_row(name, *cells, style=style)
    return table


def lines(record: Record) -> Iterator[str]:
    """What stands below the tables: machine, limits, who is missing, and how noisy it was."""
    found, limits = record.environment, record.limits
    gpu = f"{found['gpu']['name']}, " if "gpu" in found else ""
    yield f"{gpu}{found['processor']}, {found['threads']} thread(s), load {found['load']}; {found['date']}"
    yield ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    copies = [value for _, value in limits["copy"]]
    products = ", ".join(f"{number(value / 1e9)} G/s {name}" for name, value in limits["product"].items())
    yield (
        f"limits measured here: copy {number(min(copies) / 1e9)} to {number(max(copies) / 1e9)} GB/s by size, "
        f"arithmetic {products}, exp {number(limits['exp'] / 1e9)} G/s"
    )
    missing = {row.contender: row.reason for row in record.rows if row.status == MISSING}
    for name, reason in missing.items():
        yield f"left out: {name} ({reason})"
    timed = [row for row in record.rows if row.status == TIMED]
    noisy = sum(row.noisy for row in timed)
    yield (
        f"{record.settings['clock']}; medians of up to {record.settings['rounds']} calls in turns; "
        f"{noisy} of {len(timed)} timings spread by more than 20 %; seed {record.settings['seed']}"
    )
