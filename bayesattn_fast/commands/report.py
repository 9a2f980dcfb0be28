"""bayesattn report RUN: draw the figures and write the page again, from the tables in the folder."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from .parsing import parse
from .results import show


@dataclass(frozen=True)
class Report:
    """Write the page and the figures of a run again, and print its table."""

    run: Positional[str]
    """Folder of the run."""
    json: bool = False
    """Print the numbers as JSON."""


def main(words: list[str]) -> int:
    flags = parse(Report, words, prog="bayesattn report", description=Report.__doc__ or "")
    show(Path(flags.run), as_json=flags.json)
    return 0
