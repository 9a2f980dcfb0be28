"""Figures of the reproduction, drawn from its JSON results alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation.references import POSITION_ONLY
from ..evaluation.summary import Interval
from ..report.style import (
    DASHES,
    RUN_COLOURS,
    draw_mean,
    house_style,
    legend_below,
    log_scale,
    new_figure,
    position_axis,
)
from ..storage import write_atomically
from .cells import ARCHITECTURES, TUNNELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = dict(zip(ARCHITECTURES, RUN_COLOURS, strict=False))
WIDTH = 8.2
REFERENCE = "#777777"


def save(make: "Callable[[], Figure]", path: Path) -> Path:
    """Draw in the house style and write as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure = make()
        write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=110))
    return path


def _panels(result: dict[str, Any]) -> "tuple[Figure, list[tuple[Axes, str, list[dict[str, Any]]]], Axes]":
    """A panel for every tunnel that has cells; the place left over is for the legend."""
    groups = {name: [c for c in result["cells"] if c["tunnel"] == name] for name in TUNNELS}
    groups = {name: group for name, group in groups.items() if group}
    figure = new_figure(WIDTH, 5.6)
    axes = list(figure.subplots(2, 3).flat)
    for ax in axes[len(groups) :]:
        ax.set_axis_off()
    shown = [(ax, name, group) for ax, (name, group) in zip(axes, groups.items(), strict=False)]
    return figure, shown, axes[0]


def positions_figure(result: dict[str, Any]) -> "Figure":
    """KL from the exact posterior by scored position, one panel per tunnel, a line per architecture."""
    figure, panels, _ = _panels(result)
    for ax, tunnel, group in panels:
        level = group[0]["curves"]["references_by_position"][POSITION_ONLY]
        curves = {c["architecture"]: [Interval(**m) for m in c["curves"]["kl_by_position"]] for c in group}
        log_scale(ax, [*level, *(m.mean for curve in curves.values() for m in curve)])
        x = range(1, len(level) + 1)
        positive = [value if value > 1e-9 else float("nan") for value in level]
        ax.plot(x, positive, color=REFERENCE, linestyle=DASHES[0], linewidth=1.3, label=POSITION_ONLY, zorder=2.6)
        for architecture, curve in curves.items():
            draw_mean(ax, x, curve, COLOUR[architecture], architecture)
        position_axis(ax, len(level), len(level))
        ax.locator_params(axis="x", nbins=7)  # a third of a page's width has room for no more
        ax.set_title(tunnel)
    _label_left(panels, "KL(Bayes‖model) (bits)")
    legend_below(figure, [ax for ax, _, _ in panels], columns=5)
    return figure


def steps_figure(result: dict[str, Any]) -> "Figure":
    """KL on held-out sequences over training steps, one panel per tunnel, a line per architecture."""
    figure, panels, _ = _panels(result)
    for ax, tunnel, group in panels:
        level = group[0]["references"][POSITION_ONLY]["kl"]
        curves = {c["architecture"]: [Interval(**m) for m in c["curves"]["kl_by_step"]] for c in group}
        log_scale(ax, [level, *(m.mean for curve in curves.values() for m in curve)])
        ax.axhline(level, color=REFERENCE, linestyle=DASHES[0], linewidth=1.3, label=POSITION_ONLY, zorder=2.6)
        for c in group:
            draw_mean(ax, c["curves"]["steps"], curves[c["architecture"]], COLOUR[c["architecture"]], c["architecture"])
        ax.set_title(tunnel)
        ax.set_xlabel("training step")
    _label_left(panels, "KL(Bayes‖model) (bits)")
    legend_below(figure, [ax for ax, _, _ in panels], columns=5)
    return figure


def _label_left(panels: "Sequence[tuple[Axes, str, Any]]", text: str) -> None:
    for i, (ax, _, _) in enumerate(panels):
        if i % 3 == 0:
            ax.set_ylabel(text)
