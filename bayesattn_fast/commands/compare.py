"""bayesattn compare RUN RUN…: several runs side by side, in a table and on a page."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from .parsing import parse
from .results import print_json, print_tables


@dataclass(frozen=True)
class Compare:
    """Several runs side by side: a table, and with --out a page."""

    runs: Positional[tuple[str, ...]]
    """Folders of the runs."""
    out: str = ""
    """Write the comparison to this HTML file too."""
    json: bool = False
    """Print the numbers as JSON."""


def main(words: list[str]) -> int:
    from ..report import comparison_json, comparison_tables, read_runs, write_comparison

    flags = parse(Compare, words, prog="bayesattn compare", description=Compare.__doc__ or "")
    folders = [Path(run) for run in flags.runs]
    records = read_runs(folders)
    page = write_comparison(folders, Path(flags.out)) if flags.out else None
    if flags.json:
        print_json(comparison_json(records))
        return 0
    print_tables(*comparison_tables(records))
    if page:
        print(f"page: {page}")
    return 0
