"""How the results of runs are printed, for every command that prints them."""

import json
import sys
from pathlib import Path
from typing import Any


def show(folder: Path, *, as_json: bool) -> None:
    """Write the report of a run and print its table, or its numbers as JSON."""
    from ..report import length_table, read_run, result_table, summary_json, write_report

    page, record = write_report(folder), read_run(folder)
    if as_json:
        print_json({"run": str(folder), "report": str(page), **summary_json(record.rows)})
        return
    results = record.results
    print_tables(result_table(results, title=f"{record.title}, step {results.step}"), length_table(record.rows))
    for text in results.warnings:
        print(f"bayesattn: {text}", file=sys.stderr)
    print(f"report: {page}")


def print_tables(*tables: Any) -> None:
    """Tables on standard output; None is passed over. Without a terminal nothing is cut to its width."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        if table is not None:
            console.print(table)


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))
