"""The figures of a run: entropy and KL by position, loss over steps, the distances of all predictors, attention."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation.metrics import METRICS
from ..evaluation.references import EXACT, POSITION_ONLY
from ..evaluation.summary import MODEL, Interval, interval
from ..storage import write_atomically
from .attention_figure import attention_figure
from .results import Results
from .run import RunRecord
from .style import (
    BAYES_COLOUR,
    DASHES,
    MODEL_COLOUR,
    REFERENCE_COLOURS,
    RUN_COLOURS,
    draw_mean,
    draw_seeds,
    house_style,
    legend_below,
    log_scale,
    new_figure,
    position_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 150
"""Points of a loss curve: single batches are averaged in this many bins of steps."""
WIDTH = 8.2


def write_figures(record: RunRecord, folder: Path) -> dict[str, Path]:
    """Draw all figures of a run as PNG files in `folder`; returns their paths by name."""
    results = record.results
    longest = Results.of(record.rows, scored=results.lengths[-1])
    makers: dict[str, Callable[[], Figure]] = {
        "entropy": lambda: entropy_figure(longest),
        "kl": lambda: kl_figure(longest),
        "loss": lambda: loss_figure(record),
        "predictors": lambda: predictors_figure(results),
    }
    if record.watch:
        makers["attention"] = lambda: attention_figure(record.watch, results.diverged)
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _save(make, folder / f"{name}.png") for name, make in makers.items()}


def write_comparison_figure(records: Mapping[str, RunRecord], path: Path) -> Path:
    """Draw the comparison of several runs of one task as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _save(lambda: comparison_figure(records), path)


def _save(make: "Callable[[], Figure]", path: Path) -> Path:
    with house_style():
        figure = make()
        write_atomically(path, lambda temporary: figure.savefig(temporary, format="png"))
    return path


def reference_looks(results: Results) -> dict[str, tuple[str, Any]]:
    """Colour and dash of every reference predictor but the exact posterior, the same in all figures of a run."""
    names = sorted({*results.comparable, *results.informed})
    return {
        name: (REFERENCE_COLOURS[i % len(REFERENCE_COLOURS)], DASHES[i % len(DASHES)]) for i, name in enumerate(names)
    }


def alike(curves: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Names whose curves agree everywhere within 1 %, or a thousandth of their largest value, in groups.

    Such lines would hide each other.
    """
    groups: list[list[str]] = []
    for name, curve in curves.items():
        for group in groups:
            other = curves[group[0]]
            least = max(1e-9, 1e-3 * max(map(_finite, [*curve, *other])))
            if all(math.isclose(a, b, rel_tol=0.01, abs_tol=least) for a, b in zip(curve, other, strict=True)):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def draw_references(
    ax: "Axes",
    results: Results,
    curves: Mapping[str, Sequence[float]],
    groups: Sequence[Sequence[str]],
    colour: str | None = None,
) -> None:
    """Reference predictors as dashed lines, one for each group of names; a curve of one value goes all the way across.

    What is zero up to rounding is left out of logarithmic axes.
    """
    looks = reference_looks(results)
    for names in groups:
        own, dash = looks[names[0]]
        look: dict[str, Any] = {"color": colour or own, "linestyle": dash, "linewidth": 1.3, "label": ", ".join(names)}
        look["zorder"] = 2.5  # above the model, whose solid line would hide a reference that it equals
        log = ax.get_yscale() == "log"
        values = [math.nan if log and abs(value) < 1e-9 else value for value in curves[names[0]]]
        if len(values) == 1:
            ax.axhline(values[0], **look)
        else:
            ax.plot(range(1, len(values) + 1), values, **look)


def _reference_curves(results: Results, metric: str) -> dict[str, list[float]]:
    return {name: [m.mean for m in results.mean_curve(metric, name)] for name in results.comparable}


def entropy_figure(results: Results) -> "Figure":
    """Entropy of the model's predictions and of the exact posterior by position, and their difference below."""
    figure = new_figure(WIDTH, 5.4)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.1, 1))
    x = range(1, results.scored + 1)
    bayes = [m.mean for m in results.mean_curve("bayes_entropy_bits", EXACT)]
    top.plot(x, bayes, color=BAYES_COLOUR, linewidth=6, alpha=0.55, label="exact posterior (Bayes)")
    references = _reference_curves(results, "entropy_bits")
    del references[POSITION_ONLY]  # by construction on the Bayes curve
    draw_references(top, results, references, alike(references))
    draw_seeds(top, x, list(results.curve("entropy_bits").values()), MODEL_COLOUR)
    draw_mean(top, x, results.mean_curve("entropy_bits"), MODEL_COLOUR, _model_label(results))
    top.set_ylim(bottom=min(0.0, top.get_ylim()[0]))
    top.set_ylabel("entropy (bits)")
    top.set_title("Entropy of the prediction")

    curves = {
        seed: [a - b for a, b in zip(values, results.curve("bayes_entropy_bits")[seed], strict=True)]
        for seed, values in results.curve("entropy_bits").items()
    }
    bottom.axhline(0, color=BAYES_COLOUR, linewidth=2)
    draw_seeds(bottom, x, list(curves.values()), MODEL_COLOUR)
    draw_mean(bottom, x, _means(curves, results), MODEL_COLOUR, _model_label(results))
    bottom.set_ylabel("model − Bayes (bits)")
    bottom.set_title("Difference of the mean entropies, enlarged")
    position_axis(bottom, results.scored, results.trained)
    if results.trained < results.scored:
        position_axis(top, results.scored, results.trained)
        top.set_xlabel("")
    legend_below(figure, [top])
    return figure


def kl_figure(results: Results) -> "Figure":
    """KL(Bayes‖model) by position on a logarithmic scale, with the reference predictors."""
    figure = new_figure(WIDTH, 4.3)
    ax = figure.subplots()
    x = range(1, results.scored + 1)
    curves = results.curve("kl")
    references = _reference_curves(results, "kl")
    log_scale(ax, [*_flat(curves.values()), *(max(map(_finite, level)) for level in references.values())])
    draw_references(ax, results, references, alike(references))
    draw_seeds(ax, x, list(curves.values()), MODEL_COLOUR)
    draw_mean(ax, x, results.mean_curve("kl"), MODEL_COLOUR, _model_label(results))
    ax.set_ylabel("KL(Bayes‖model) (bits, log scale)")
    ax.set_title("Distance from the exact posterior")
    position_axis(ax, results.scored, results.trained)
    legend_below(figure, [ax])
    return figure


def loss_figure(record: RunRecord) -> "Figure":
    """Training loss against the Bayes floor over steps, and the gap between them on a logarithmic scale."""
    results = record.results
    figure = new_figure(WIDTH, 4.1)
    left, right = figure.subplots(1, 2)
    steps, losses, floors = binned_losses(record)
    gaps = {seed: [a - b for a, b in zip(losses[seed], floors[seed], strict=True)] for seed in losses}
    held_out = [Results.of(record.rows, step=step).summary("gap").mean for step in results.steps]
    levels = {
        metric: {name: [results.summary(metric, name).mean] for name in results.comparable}
        for metric in ("loss", "gap")
    }
    log_scale(right, [*held_out, *_flat(gaps.values()), *_flat(levels["gap"].values())])
    left.plot(steps, _mean(floors, results), color=BAYES_COLOUR, linewidth=5, alpha=0.55, label="Bayes floor")
    groups = alike(levels["gap"])
    draw_references(left, results, levels["loss"], groups)
    told = {name: [results.summary("sampled_loss", name).mean] for name in results.informed}
    draw_references(left, results, told, [[name] for name in told])
    draw_references(right, results, levels["gap"], groups)
    for ax, curves in ((left, losses), (right, gaps)):
        draw_seeds(ax, steps, list(curves.values()), MODEL_COLOUR)
        ax.plot(steps, _mean(curves, results), color=MODEL_COLOUR, linewidth=1.6, label="model, training batches")
        ax.set_xlabel("training step")
    left.set_ylabel("loss (nats per answer)")
    left.set_title("Loss and its floor")
    right.plot(
        results.steps,
        held_out,
        linestyle="",
        marker="D",
        markersize=4.5,
        color="white",
        markeredgecolor=MODEL_COLOUR,
        markeredgewidth=1.3,
        label="model, held-out sequences",
        zorder=3,
    )
    right.set_ylabel("loss − Bayes floor (nats, log scale)")
    right.set_title("Gap to the floor")
    legend_below(figure, [left, right])
    return figure


def binned_losses(record: RunRecord) -> tuple[list[float], dict[int, list[float]], dict[int, list[float]]]:
    """Mean step of each bin, and by seed the mean loss and the mean floor of its batches, in nats."""
    last = max(row["step"] for row in record.losses)
    bins: dict[int, dict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in record.losses:
        where = min(BINS - 1, (row["step"] - 1) * BINS // last)
        bins[where][row["seed"]].append((row["step"], row["loss"], row["floor"]))
    seeds = list(dict.fromkeys(row["seed"] for row in record.losses))
    columns: list[dict[int, list[float]]] = [{seed: [] for seed in seeds} for _ in range(3)]
    for where in sorted(bins):
        for seed in seeds:
            records = bins[where].get(seed) or [(math.nan,) * 3]
            for column, values in zip(columns, zip(*records, strict=True), strict=True):
                column[seed].append(math.fsum(values) / len(values))
    steps, losses, floors = columns
    return steps[seeds[0]], losses, floors


def predictors_figure(results: Results) -> "Figure":
    """Every predictor's distance from the exact posterior in two scores: the model's seeds against the references."""
    names = [MODEL, *reversed(results.comparable)]
    figure = new_figure(WIDTH, 1.5 + 0.32 * len(names))
    axes = figure.subplots(1, 2, sharey=True)
    looks = reference_looks(results)
    for ax, metric in zip(axes, ("kl", "entropy_abs_error"), strict=True):
        shown = [v for name in names for v in results.per_seed(metric, name).values() if v > 1e-9]
        log_scale(ax, shown, axis="x")
        for y, name in enumerate(reversed(names)):
            colour = MODEL_COLOUR if name == MODEL else looks[name][0]
            _mark(ax, y, results.summary(metric, name).mean, colour)
            if name == MODEL:
                values = list(results.per_seed(metric).values())
                ax.plot(values, [y] * len(values), "o", color=colour, alpha=0.45, markersize=5, markeredgewidth=0)
        ax.set_xlabel(f"{METRICS[metric].label} (bits, log scale)")
        ax.grid(axis="x")
    axes[0].set_title("Distance from the exact posterior: left is better")
    axes[0].set_yticks(range(len(names)), [*reversed(names)])
    axes[0].set_ylim(-0.6, len(names) - 0.4)
    return figure


def _mark(ax: "Axes", y: float, value: float, colour: str) -> None:
    """A tick at the value; where a logarithmic axis has no place for it, its name at the edge."""
    if 1e-9 < value < math.inf:
        ax.plot([value], [y], "|", color=colour, markersize=17, markeredgewidth=2.6)
        return
    text, edge = ("0", 0.015) if value <= 1e-9 else ("∞", 0.985)
    ax.text(edge, y, text, color=colour, transform=ax.get_yaxis_transform(), ha="center", va="center", weight="bold")


def comparison_figure(records: Mapping[str, RunRecord]) -> "Figure":
    """KL by position of several runs of one task: mean and 95 % band over seeds."""
    figure = new_figure(WIDTH, 4.3)
    ax = figure.subplots()
    first = next(iter(records.values())).results
    x = range(1, first.scored + 1)
    means = {label: record.results.mean_curve("kl") for label, record in records.items()}
    references = _reference_curves(first, "kl")
    values = [m.mean for curve in means.values() for m in curve]
    log_scale(ax, [*values, *(max(map(_finite, level)) for level in references.values())])
    draw_references(ax, first, references, alike(references), colour="#777777")
    for i, (label, curve) in enumerate(means.items()):
        draw_mean(ax, x, curve, RUN_COLOURS[i % len(RUN_COLOURS)], label)
    ax.set_ylabel("KL(Bayes‖model) (bits, log scale)")
    ax.set_title("Distance from the exact posterior")
    position_axis(ax, first.scored, first.trained)
    legend_below(figure, [ax])
    return figure


def _model_label(results: Results) -> str:
    return "model, mean and 95 % band over seeds" if results.summary("kl").seeds > 1 else "model"


def _means(curves: Mapping[int, Sequence[float]], results: Results) -> list[Interval]:
    kept = [values for seed, values in curves.items() if seed not in results.diverged]
    length = len(next(iter(curves.values())))
    return [interval(values) for values in zip(*kept, strict=True)] or [interval([])] * length


def _mean(curves: Mapping[int, Sequence[float]], results: Results) -> list[float]:
    return [m.mean for m in _means(curves, results)]


def _flat(curves: Iterable[Sequence[float]]) -> list[float]:
    return [value for curve in curves for value in curve]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
