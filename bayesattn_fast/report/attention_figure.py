"""The figure of a watched run: advantage variance, routing entropy and responsibility of every head over steps."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .results import Row
from .style import DASHES, RUN_COLOURS, legend_below, log_scale, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.2, 3.6
MOST_LABELS = 12
"""More heads than this are labelled by their layer alone."""
PANELS = (
    ("advantage_variance", "Advantage variance", "nats², log scale"),
    ("routing_entropy", "Routing entropy", "bits"),
    ("heaviest_key", "Mass of the heaviest key", "share of all responsibility"),
)


def head_curves(
    rows: Sequence[Row], column: str, diverged: Iterable[int] = ()
) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """(layer, head) → recorded steps and, at each, the mean over the seeds that did not diverge."""
    dead = set(diverged)
    found: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["seed"] not in dead:
            found[row["layer"], row["head"]][row["step"]].append(row[column])
    return {
        at: (list(by_step), [math.fsum(values) / len(values) for values in by_step.values()])
        for at, by_step in sorted(found.items())
    }


def attention_figure(rows: Sequence[Row], diverged: Iterable[int] = ()) -> "Figure":
    """Three panels over steps; a colour for each layer, a dash for each of its heads."""
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.subplots(1, len(PANELS))
    looks = ("-", *DASHES)
    for ax, (column, title, unit) in zip(axes, PANELS, strict=True):
        curves = head_curves(rows, column, diverged)
        if unit.endswith("log scale"):
            log_scale(ax, [value for _, values in curves.values() for value in values])
        few = len(curves) <= MOST_LABELS
        for (layer, head), (steps, values) in curves.items():
            label = f"layer {layer}, head {head}" if few else f"layer {layer}"
            look = {"color": RUN_COLOURS[layer % len(RUN_COLOURS)], "linestyle": looks[head % len(looks)]}
            ax.plot(steps, values, linewidth=1.3, label=label, **look)
        if not unit.endswith("log scale"):
            ax.set_ylim(bottom=0)
        ax.set(title=title, xlabel="training step", ylabel=unit)
    legend_below(figure, list(axes), columns=5)
    return figure
