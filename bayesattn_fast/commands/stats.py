"""bayesattn stats SWEEP: what the seeds of a sweep say, with intervals, in the format a paper needs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .parsing import UsageError, parse

EXAMPLES = """examples:
  bayesattn stats runs/my-sweep --by model --metric kl
  bayesattn stats runs/my-sweep --by model --compare transformer lstm
  bayesattn stats runs/my-sweep --by tunnel model --threshold 0.05 --figures figures
  bayesattn stats runs/my-sweep --width 0.01 --format latex --out table.tex"""


@dataclass(frozen=True)
class StatsFlags:
    """Statistics of a sweep: mean, median and interquartile mean with stratified-bootstrap intervals, and more."""

    by: tuple[str, ...] = ()
    """Columns that make the groups; all that vary where nothing is named. The others are tasks, resampled apart."""
    metric: str = ""
    """The score; kl, or the excess held-out loss of a single head, where nothing is named."""
    compare: tuple[str, ...] = ()
    """Groups to compare in pairs: paired tests with Holm's correction, probability of improvement."""
    threshold: float | None = None
    """Steps until the metric is this good; runs that never are count as censored."""
    width: float | None = None
    """Seeds needed for a 95 % interval of the mean of this width."""
    format: Literal["text", "markdown", "csv", "latex", "json"] = "text"
    """Format of the tables."""
    out: str = ""
    """File to write the tables to, instead of printing them."""
    figures: str = ""
    """Folder to draw the figures in."""
    json: bool = False
    """The same as --format json."""


def main(words: list[str]) -> int:
    about = f"{StatsFlags.__doc__}\n\n{EXAMPLES}"
    if not words or words[0].startswith("-"):
        if words[:1] in (["-h"], ["--help"]):
            parse(StatsFlags, words, prog="bayesattn stats SWEEP", description=about)
        raise UsageError("stats takes the folder of a sweep first, then the flags")
    flags = parse(StatsFlags, words[1:], prog=f"bayesattn stats {words[0]}", description=about)
    return _stats(Path(words[0]), flags)


def _stats(folder: Path, flags: StatsFlags) -> int:
    from ..report.formats import format_tables
    from ..storage import write_text
    from ..sweeps import Store
    from ..sweeps.scores import numeric_columns, read_runs
    from ..sweeps.summary import comparison_table, estimates_table, precision_table, threshold_table

    store = Store(folder)
    store.manifest()
    if not store.shards:
        raise ValueError(f"{folder} has no finished shards yet")
    metric = flags.metric or ("kl" if "kl" in numeric_columns(store) else "excess_loss")
    runs = read_runs(folder, metric, flags.by)
    tables = [estimates_table(runs)]
    if flags.compare:
        tables.append(comparison_table(runs, flags.compare))
    if flags.threshold is not None:
        tables.append(threshold_table(runs, folder, flags.threshold))
    if flags.width is not None:
        tables.append(precision_table(runs, flags.width))
    text = format_tables(tables, "json" if flags.json else flags.format)
    if flags.out:
        write_text(flags.out, text + "\n")
    else:
        print(text)
    if flags.figures:
        from ..sweeps.figures import write_figures

        for path in write_figures(runs, folder, Path(flags.figures)).values():
            print(f"figure: {path}", file=sys.stderr)
    return 0
