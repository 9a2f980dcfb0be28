"""Figures of the experiment: loss curves with bands, speed-ups beside their controls, and held-out loss."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..evaluation.summary import interval
from ..report.style import (
    BAYES_COLOUR,
    DASHES,
    RUN_COLOURS,
    draw_mean,
    house_style,
    legend_below,
    new_figure,
)
from ..storage import write_atomically
from .schedules import METHODS, Schedule, label
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.2
COLOUR = dict(zip(METHODS, RUN_COLOURS, strict=False))


def write_figures(summary: Summary, folder: Path) -> dict[str, Path]:
    """Draw all figures as PNG files in `folder`; returns their paths by name."""
    makers: dict[str, Callable[[Summary], Figure]] = {
        "curves": curves_figure,
        "speedup": speedup_figure,
        "held-out": held_out_figure,
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, make in makers.items():
        with house_style():
            figure = make(summary)
            paths[name] = folder / f"{name}.png"
            write_atomically(paths[name], lambda to, figure=figure: figure.savefig(to, format="png"))  # type: ignore[misc]
    return paths


def _at_base(summary: Summary) -> list[Schedule]:
    """The authors' two schedules, the controls at the same base rate, and SGD at ten times the rate if it was run."""
    base = summary.baseline.base
    fast = [s for s in summary.experiment.schedules if s.method == "sgd" and math.isclose(s.base, 10 * base)]
    return [s for s in summary.experiment.schedules if s.base == base] + fast


def _curve(summary: Summary, chosen: Schedule, column: str) -> tuple[list[int], list[list[float]]]:
    """Recorded steps and, at each, the values of all seeds."""
    runs = list(summary.by_schedule[chosen.name].values())
    if not runs:
        return [], []
    steps = list(runs[0]["recorded"])
    if column == "loss":
        return steps, [[run["loss"][t] for run in runs] for t in steps]
    return steps, [[run[column][i] for run in runs] for i in range(len(steps))]


def curves_figure(summary: Summary) -> "Figure":
    """Training and held-out loss over steps at the authors' rate, mean and 95 % band over seeds."""
    figure = new_figure(WIDTH, 4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, column, title in ((left, "loss", "Training chain"), (right, "held_out_loss", "Fresh chain")):
        for chosen in _at_base(summary):
            steps, values = _curve(summary, chosen, column)
            if steps:
                fast = chosen.base != summary.baseline.base
                colour = "#000000" if fast else COLOUR[chosen.method]
                draw_mean(ax, steps, [interval(v) for v in values], colour, label(chosen, summary.experiment.ratio))
                ax.lines[-1].set(marker="", linestyle=DASHES[0] if fast else "-")
        ax.set_title(title)
        ax.set_xlabel("step")
    right.axhline(summary.filter_mean("filter_loss"), color=BAYES_COLOUR, linewidth=4, zorder=0.5, label="exact filter")
    left.set_ylabel("loss (nats)")
    legend_below(figure, [left, right], columns=2)
    return figure


def _names(ax: "Axes", names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")


def speedup_figure(summary: Summary) -> "Figure":
    """The authors' speed-up of every schedule at the base rate with its interval, and each seed's own as a dot."""
    chosen = [s for s in _at_base(summary) if s.name != summary.baseline.name]
    figure = new_figure(WIDTH, 1.3 + 0.5 * max(3, len(chosen)))
    ax = figure.subplots()
    for i, s in enumerate(chosen):
        colour = COLOUR[s.method] if s.base == summary.baseline.base else "#000000"
        own = summary.own_speedups(s.name)
        ax.plot(
            own,
            [i + 0.18] * len(own),
            "o",
            color=colour,
            markersize=3.5,
            alpha=max(0.15, min(0.6, 8 / len(own or [0]))),
        )
        found = summary.speedup(s.name)
        if math.isfinite(found.value):
            ax.plot([found.low, found.high], [i - 0.12] * 2, color=colour, linewidth=2)
            ax.plot([found.value], [i - 0.12], "|", color=colour, markersize=16, markeredgewidth=2.6)
    ax.axvline(1.0, color=BAYES_COLOUR, linewidth=2, zorder=0.5)
    ax.set_xscale("log")
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100) if t < 1.3 * ax.get_xlim()[1]]
    ax.set_xticks(ticks, [f"{t}×" for t in ticks])
    ax.minorticks_off()
    _names(ax, [label(s, summary.experiment.ratio) for s in chosen])
    ax.set_xlabel("times fewer steps to SGD's final loss (tick, line: mean, 95 %; dots: seeds)")
    ax.set_title("The authors' speed-up beside its controls")
    return figure


def held_out_figure(summary: Summary) -> "Figure":
    """Lowest held-out loss over the exact filter's, for every schedule: dots are seeds, ticks are means."""
    chosen = [s for s in summary.experiment.schedules if summary.by_schedule[s.name]]
    figure = new_figure(WIDTH, 1.3 + 0.42 * max(3, len(chosen)))
    ax = figure.subplots()
    for i, s in enumerate(chosen):
        runs = summary.by_schedule[s.name]
        values = [low - runs[seed]["filter_loss"] for seed, low in summary.lowest(s.name).items()]
        colour = COLOUR[s.method]
        ax.plot(
            values,
            [i + 0.15] * len(values),
            "o",
            color=colour,
            markersize=3.5,
            alpha=max(0.15, min(0.6, 8 / len(values))),
        )
        ax.plot([interval(values).mean], [i - 0.1], "|", color=colour, markersize=14, markeredgewidth=2.6)
    ax.axvline(summary.epsilon, color="#555555", linewidth=1, linestyle=DASHES[0])
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    _names(ax, [label(s, summary.experiment.ratio) for s in chosen])
    ax.set_xlabel("nats above the exact filter, fresh chain, best step (dashed: threshold)")
    ax.set_title("Held-out loss, every schedule")
    return figure
