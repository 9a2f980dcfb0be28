"""Figures of a sweep: estimates with intervals, performance profiles with bands, curves over steps with bands."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..evaluation.metrics import METRICS
from ..evaluation.summary import interval
from ..report.style import RUN_COLOURS, draw_mean, house_style, legend_below, new_figure
from ..statistics import estimate, iqm, profile, threshold_grid
from ..storage import write_atomically
from .scores import Runs, read_curves
from .summary import group_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_GROUPS = len(RUN_COLOURS)


def write_figures(runs: Runs, source: Path, folder: Path) -> dict[str, Path]:
    """Draw what the sweep has data for as PNG files in `folder`; returns paths by name.

    ValueError for more groups than can be told apart.
    """
    groups = [group for group in group_list(runs) if runs.strata(group)]
    if len(groups) > MOST_GROUPS:
        raise ValueError(f"--figures shows at most {MOST_GROUPS} groups and --by {' '.join(runs.by)} has {len(groups)}")
    makers: dict[str, Callable[[], Figure]] = {
        "estimates": lambda: estimates_figure(runs, groups),
        "profiles": lambda: profiles_figure(runs, groups),
        "curves": lambda: curves_figure(runs, source, groups),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, make in makers.items():
        try:
            written[name] = _save(make, folder / f"{name}.png")
        except ValueError as error:
            if "no curve" not in str(error):
                raise
    return written


def _save(make: "Callable[[], Figure]", path: Path) -> Path:
    with house_style():
        figure = make()
        write_atomically(path, lambda temporary: figure.savefig(temporary, format="png"))
    return path


def _axis_label(runs: Runs) -> str:
    known = METRICS.get(runs.metric)
    if known is None:
        return runs.metric.replace("_", " ")
    return f"{known.label} ({known.unit})" if known.unit else known.label


def estimates_figure(runs: Runs, groups: list[str]) -> "Figure":
    """The interquartile mean of every group with its 95 % interval, every run as a dot."""
    figure = new_figure(7.5, 1.2 + 0.55 * len(groups))
    ax = figure.subplots()
    scatter = np.random.default_rng(0)
    for row, group in enumerate(groups):
        strata = list(runs.strata(group).values())
        scores, colour = np.concatenate(strata), RUN_COLOURS[row]
        shown = scores if len(scores) <= 500 else scatter.choice(scores, 500, replace=False)
        ax.scatter(shown, row + scatter.uniform(-0.22, 0.22, len(shown)), s=8, alpha=0.25, color=colour, linewidths=0)
        found = estimate(strata, iqm)
        ax.plot([found.low, found.high], [row, row], color=colour, linewidth=6, alpha=0.55, solid_capstyle="butt")
        ax.plot([found.value] * 2, [row - 0.3, row + 0.3], color="black", linewidth=1.5)
    ax.set_yticks(range(len(groups)), groups)
    ax.set_ylim(len(groups) - 0.4, -0.6)
    ax.grid(axis="x")
    ax.set_xlabel(_axis_label(runs))
    ax.set_title("Interquartile mean, 95 % interval, and runs")
    return figure


def profiles_figure(runs: Runs, groups: list[str]) -> "Figure":
    """Share of runs that score better than τ."""
    figure = new_figure(7.5, 4.2)
    ax = figure.subplots()
    grid = threshold_grid([part for group in groups for part in runs.strata(group).values()], 201)
    for colour, group in zip(RUN_COLOURS, groups, strict=False):
        found = profile(list(runs.strata(group).values()), grid, lower_is_better=runs.lower_is_better)
        ax.plot(grid, found.share, color=colour, label=group)
        ax.fill_between(grid, found.low, found.high, color=colour, alpha=0.18, linewidth=0)
    ax.set_xlabel(f"τ: {_axis_label(runs)}")
    ax.set_ylabel(f"share of runs {'below' if runs.lower_is_better else 'above'} τ")
    ax.set_ylim(-0.02, 1.02)
    ax.set_title("Performance profiles with 95 % bands")
    legend_below(figure, [ax])
    return figure


def curves_figure(runs: Runs, source: Path, groups: list[str]) -> "Figure":
    """Mean over runs at every evaluated step, with its 95 % interval."""
    steps, curves = read_curves(source, runs.metric, runs)
    names = runs.group_names()
    figure = new_figure(7.5, 4.2)
    ax = figure.subplots()
    for colour, group in zip(RUN_COLOURS, groups, strict=False):
        mine = np.flatnonzero(names == group)
        by_step: dict[int, list[float]] = {}
        for i in mine:
            for step, value in zip(steps[i], curves[i], strict=True):
                by_step.setdefault(step, []).append(value)
        x = sorted(by_step)
        draw_mean(ax, x, [interval(by_step[step]) for step in x], colour, group)
    ax.set_xlabel("optimiser step")
    ax.set_ylabel(_axis_label(runs))
    ax.set_title("Mean over runs with its 95 % band")
    legend_below(figure, [ax])
    return figure
