"""One table in many formats: text for a terminal, Markdown, CSV, LaTeX, JSON."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .numbers import number

FORMATS = ("text", "markdown", "csv", "latex", "json")


@dataclass(frozen=True)
class PlainTable:
    """Rows of text and numbers; a triple (value, low, high) is a number with its interval."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def format_tables(tables: Sequence[PlainTable], form: str) -> str:
    """All tables in one format. ValueError for a format that is not one of FORMATS."""
    if form == "json":
        return json.dumps([_as_json(table) for table in tables], indent=2, allow_nan=False, ensure_ascii=False)
    makers = {"text": _text, "markdown": _markdown, "csv": _csv, "latex": _latex}
    if form not in makers:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {form!r}")
    return "\n\n".join(makers[form](table) for table in tables)


def cell(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, tuple):
        middle, low, high = map(cell, value)
        return middle if low == "–" or high == "–" else f"{middle} [{low}, {high}]"
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else str(value)


def _text(table: PlainTable) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=table.title, box=box.SIMPLE, title_justify="left")
    for i, name in enumerate(table.columns):
        words = all(isinstance(row[i], str) for row in table.rows)
        shown.add_column(name, justify="left" if words else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(cell, row))
    page = io.StringIO()
    Console(file=page, width=200).print(shown)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()).strip("\n")


def _markdown(table: PlainTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    lines = [line(table.columns), "|" + "---|" * len(table.columns)]
    return "\n".join([f"**{table.title}**", "", *lines, *(line([*map(cell, row)]) for row in table.rows)])


def _csv(table: PlainTable) -> str:
    """Numbers in full; an interval takes three columns."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    wide = [any(isinstance(row[i], tuple) for row in table.rows) for i in range(len(table.columns))]
    heads = [[n, f"{n} low", f"{n} high"] if w else [n] for n, w in zip(table.columns, wide, strict=True)]
    writer.writerow([name for names in heads for name in names])
    for row in table.rows:
        cells = [list(v) if isinstance(v, tuple) else [v] + [""] * 2 * w for v, w in zip(row, wide, strict=True)]
        writer.writerow([value for values in cells for value in values])
    return page.getvalue().rstrip("\n")


_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_LATEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": "$<$", ">": "$>$", "∞": r"$\infty$"}
_LATEX |= {"−": "$-$", "±": r"$\pm$", "–": "--", "×": r"$\times$", "≤": r"$\le$", "≥": r"$\ge$", "τ": r"$\tau$"}


def _latex(table: PlainTable) -> str:
    r"""A booktabs table."""

    def escaped(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in text)

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(escaped, cells)) + r" \\"

    texts = [all(isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]
    letters = "".join("l" if text else "r" for text in texts)
    head = [r"\begin{table}", rf"\caption{{{escaped(table.title)}}}", rf"\begin{{tabular}}{{{letters}}}", r"\toprule"]
    body = [line(table.columns), r"\midrule", *(line([*map(cell, row)]) for row in table.rows), r"\bottomrule"]
    return "\n".join([*head, *body, r"\end{tabular}", r"\end{table}"])


def _as_json(table: PlainTable) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return dict(zip(("value", "low", "high"), map(plain, value), strict=True))
        return None if isinstance(value, float) and not math.isfinite(value) else value

    rows = [dict(zip(table.columns, map(plain, row), strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows}
