"""The result of a run as a table for the terminal and as plain data for programs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..evaluation.metrics import METRICS
from ..evaluation.references import EXACT
from ..evaluation.summary import MODEL, Interval
from .numbers import number
from .results import Results, Row
from .run import RunRecord
from .verdict import verdict

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = ("kl", "entropy_abs_error", "entropy_mae", "tvd", "gap", "accuracy", "impossible_mass")
"""Columns of tables: the divergences first, since the entropies alone can be right by accident."""
NARROW = tuple(metric for metric in SHOWN if metric != "gap")
"""Columns that fit a terminal of 80 characters; the gap is the KL in other units."""
UNITS = "KL and entropies in bits"
MOST_SEEDS = 8
"""More seeds than this are summed up without a line for each."""


def half_width(value: Interval) -> float | None:
    """Half the 95 % interval, None where there is none."""
    return None if value.high is None else value.high - value.mean


def table_lines(results: Results, metrics: Sequence[str] = SHOWN) -> Iterator[tuple[str, str, list[str]]]:
    """Lines of the result table: (kind, name, cells), kind "seed", "mean", "interval" or "reference"."""
    seeds, diverged = results.seeds, results.diverged
    if 1 < len(seeds) <= MOST_SEEDS or diverged:
        for seed in seeds if len(seeds) <= MOST_SEEDS else diverged:
            mark = " (diverged)" if seed in diverged else ""
            yield "seed", f"seed {seed}{mark}", [number(results.per_seed(metric)[seed]) for metric in metrics]
    summaries = [results.summary(metric) for metric in metrics]
    counted = max(summary.seeds for summary in summaries)
    name = f"mean of {counted} seeds" if len(seeds) > 1 else f"model, seed {seeds[0]}"
    yield "mean", name, [number(summary.mean) for summary in summaries]
    if counted > 1:
        yield "interval", "± 95 % interval", [number(half_width(summary)) for summary in summaries]
    for reference in results.references:
        yield "reference", reference, [number(results.summary(metric, reference).mean) for metric in metrics]


def result_table(rows: Sequence[Row] | Results, title: str | None = None) -> "Table":
    """The last evaluation in the rows of metrics.parquet: every seed, mean, interval, and the reference predictors."""
    results = rows if isinstance(rows, Results) else Results.of(rows)
    table = _empty_table(title, "predictor", NARROW)
    caption = (
        f"{UNITS}; {results.sequences:,} held-out sequences per seed, {results.scored} scored positions, "
        f"step {results.step:,}; references are exact, not trained"
    )
    table.caption = "\n".join([caption, *informed_notes(results)])
    styles = {"seed": "", "mean": "bold", "interval": "dim", "reference": "cyan"}
    previous = None
    for kind, name, cells in table_lines(results, NARROW):
        if kind == "reference" and previous != "reference":
            table.add_section()
        table.add_row(name, *cells, style="green" if name == EXACT else styles[kind])
        previous = kind
    return table


def informed_notes(results: Results) -> list[str]:
    """A sentence on each reference that is told more than the inputs show."""
    floor = number(results.summary("bayes_floor", EXACT).mean, 4)
    losses = {name: number(results.summary("sampled_loss", name).mean, 4) for name in results.informed}
    return [
        f"“{name}” is told more than the inputs show: a loss of {loss} nats on the sampled answers, below the Bayes "
        f"floor of {floor}"
        for name, loss in losses.items()
    ]


def length_table(rows: Sequence[Row]) -> "Table | None":
    """KL and entropy error within and beyond the trained positions, for every length; None where nothing is beyond."""
    lines = list(length_lines(rows))
    if not lines:
        return None
    table = _empty_table("Length generalisation, mean over seeds", "predictor", ())
    for name in ("positions", "KL\ntrained", "KL\nbeyond", "entropy error\ntrained", "entropy error\nbeyond"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*line, style="bold" if line[0] == MODEL else "cyan")
    table.caption = UNITS
    return table


def length_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Cells: predictor, positions, KL trained and beyond, entropy error trained and beyond."""
    for scored in Results.of(rows).lengths:
        results = Results.of(rows, scored=scored)
        if "beyond" in results.spans:
            for name in (MODEL, *results.comparable):
                cells = [
                    number(results.summary(metric, name, span).mean)
                    for metric in ("kl", "entropy_abs_error")
                    for span in ("trained", "beyond")
                ]
                yield [name, f"{results.trained} + {scored - results.trained}", *cells]


def _empty_table(title: str | None, first: str, metrics: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column(first, overflow="fold")
    for metric in metrics:
        # Numbers take up to seven characters. In a narrow terminal names wrap, numbers never.
        label = METRICS[metric].label.replace("impossible mass", "impossible").replace(" ", "\n")
        table.add_column(label, justify="right", min_width=max(7, *map(len, label.split())))
    return table


def comparison_tables(records: Mapping[str, RunRecord]) -> "list[Table]":
    """A table per task: means over seeds of its runs, by label (number of seeds), above its reference predictors."""
    tables = []
    for group in by_task(records):
        first = next(iter(group.values()))
        table = _empty_table(task_name(first), "run (seeds)", NARROW)
        table.caption = UNITS
        for label, record in group.items():
            results = record.results
            cells = [number(results.summary(metric).mean) for metric in NARROW]
            table.add_row(f"{label} ({results.summary('kl').seeds})", *cells, style="bold")
        table.add_section()
        for name in first.results.references:
            cells = [number(first.results.summary(metric, name).mean) for metric in NARROW]
            table.add_row(name, *cells, style="green" if name == EXACT else "cyan")
        tables.append(table)
    return tables


def task_name(record: RunRecord) -> str:
    """The tunnel with its sizes."""
    sizes = [f"{name} {value}" for name, value in record.config["tunnel"].items() if name != "name"]
    return f"{record.tunnel}: {', '.join(sizes)}"


def by_task(records: Mapping[str, RunRecord]) -> list[dict[str, RunRecord]]:
    """Runs in groups that share tunnel and sizes: only within a group can scores be compared."""
    groups: dict[str, dict[str, RunRecord]] = {}
    for label, record in records.items():
        key = repr(sorted(record.config["tunnel"].items())) + str(record.results.scored)
        groups.setdefault(key, {})[label] = record
    return list(groups.values())


def summary_json(rows: Sequence[Row] | Results) -> dict[str, Any]:
    """The last evaluation as JSON-ready data: null stands for NaN and infinity, and for the interval of one seed.

    Keys: step, sequences, scored, trained, seeds, diverged, verdict, warnings, metrics (by name: unit, mean, low, high,
    seeds, per_seed), references (by predictor, then metric: mean over seeds), spans ("trained" and "beyond" where there
    are positions beyond the trained ones; then as references, with the model).
    """
    results = rows if isinstance(rows, Results) else Results.of(rows)
    return {
        "step": results.step,
        "sequences": results.sequences,
        "scored": results.scored,
        "trained": results.trained,
        "seeds": list(results.seeds),
        "diverged": {str(seed): step for seed, step in results.diverged.items()},
        "verdict": verdict(results).text,
        "warnings": results.warnings,
        "metrics": {metric: _metric_json(results, metric) for metric in METRICS},
        "references": {name: _means_json(results, name, "all") for name in results.references},
        "spans": {
            span: {name: _means_json(results, name, span) for name in (MODEL, *results.references)}
            for span in results.spans
            if span != "all"
        },
    }


def _means_json(results: Results, predictor: str, span: str) -> dict[str, float | None]:
    return {metric: _finite(results.summary(metric, predictor, span).mean) for metric in METRICS}


def _metric_json(results: Results, metric: str) -> dict[str, Any]:
    summary = results.summary(metric)
    return {
        "unit": METRICS[metric].unit,
        "mean": _finite(summary.mean),
        "low": summary.low,
        "high": summary.high,
        "seeds": summary.seeds,
        "per_seed": {str(seed): _finite(value) for seed, value in results.per_seed(metric).items()},
    }


def comparison_json(records: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Label → tunnel, model and the summary of the run."""
    return {
        label: {"tunnel": record.config["tunnel"], "model": record.config["model"], **summary_json(record.results)}
        for label, record in records.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
