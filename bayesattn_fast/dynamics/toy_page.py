"""The picture and the page of the toy: routing before and after, the advantage map, and the paths of the values."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.numbers import number
from ..report.page import Picture, Section, render
from ..report.style import RUN_COLOURS, house_style, legend_below, new_figure
from ..report.verdict import Verdict
from ..storage import write_atomically
from .toy import INPUTS, Moved, Toy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

WIDTH = 8.2
CAPTION = (
    "Above: the responsibility α of every position (row) for every other (column) before and after, and the advantage "
    "before the first step: blue where routing more of the row to the column lowers the loss. Below: the values v_j in "
    "their plane, from the open to the full circle, in the colour of the position's own target; the thin arrow is "
    "−∂L/∂v_j before the first step, the pull of the queries that use v_j, all to one scale; dashed lines are the "
    "directions that the readout ends up with for each class. Values share w_v, so that none follows its pull alone."
)


def toy_figure(toy: Toy, moved: Moved) -> "Figure":
    """Three maps above; below, the value paths and the loss."""
    figure = new_figure(WIDTH, 7.4)
    panels = figure.subplot_mosaic(
        [["before", "advantage", "after"], ["paths", "paths", "loss"]], height_ratios=(1, 1.35)
    )
    _map(panels["before"], moved.before.responsibility, "α before", low=0.0, high=1.0)
    span = float(moved.before.advantage.abs().max())
    _map(panels["advantage"], moved.before.advantage, "advantage before", low=-span, high=span)
    _map(panels["after"], moved.after.responsibility, f"α after {toy.steps} steps", low=0.0, high=1.0)
    _paths(panels["paths"], moved)
    panels["loss"].plot(moved.loss.tolist(), color="#333333", linewidth=1.6)
    panels["loss"].set(xlabel="step", ylabel="loss (nats)", title="Loss", ylim=(0, None))
    legend_below(figure, [panels["paths"]], columns=6)
    return figure


def _map(ax: "Axes", values: "Tensor", title: str, low: float, high: float) -> None:
    """A matrix with its numbers written into it."""
    ax.imshow(values.numpy(), cmap="RdBu" if low < 0 else "Blues", vmin=low, vmax=high)
    count = len(values)
    if count <= 8:
        for i in range(count):
            for j in range(count):
                value = float(values[i, j])
                dark = abs(value) > 0.6 * high
                text = f"{value:.2f}" if high >= 0.1 else f"{1e3 * value:.0f}"
                ax.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "#222222")
    if high < 0.1:
        title += " (× 1,000)"
    ticks = range(0, count, max(1, count // 8))
    ax.set_xticks(ticks, [str(i + 1) for i in ticks])
    ax.set_yticks(ticks, [str(i + 1) for i in ticks])
    ax.set(title=title, xlabel="key j", ylabel="query i")
    ax.grid(visible=False)


def _paths(ax: "Axes", moved: Moved) -> None:
    from matplotlib.patheffects import withStroke

    halo: Any = {"path_effects": [withStroke(linewidth=3, foreground="white")], "zorder": 5}
    values, targets = moved.values.numpy(), moved.targets.tolist()
    reach = float(abs(values).max())
    pull = moved.pull.numpy()
    pull = pull * (0.35 * reach / max(1e-12, float(abs(pull).max())))
    for c, direction in enumerate(moved.readout.T.numpy()):
        end = direction / max(1e-12, float((direction**2).sum() ** 0.5)) * 1.15 * reach
        ax.plot([0, end[0]], [0, end[1]], color=_colour(c), linestyle=(0, (5, 2)), linewidth=1, label=f"class {c + 1}")
    for j, target in enumerate(targets):
        colour, path = _colour(target), values[:, j]
        ax.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.8)
        ax.plot(*path[0], "o", markersize=6, color="white", markeredgecolor=colour, markeredgewidth=1.5, zorder=3)
        ax.plot(*path[-1], "o", markersize=6.5, color=colour, zorder=3)
        ax.annotate("", path[0] + pull[j], path[0], arrowprops={"arrowstyle": "->", "color": "#777777", "lw": 0.9})
        ax.annotate(
            str(j + 1), path[-1], xytext=(6, 5), textcoords="offset points", color=colour, weight="bold", **halo
        )
    ax.axhline(0, color="#CCCCCC", linewidth=0.8, zorder=0)
    ax.axvline(0, color="#CCCCCC", linewidth=0.8, zorder=0)
    ax.set(title="Paths of the values", xlabel="first component", ylabel="second component", aspect="equal")
    ax.set_adjustable("datalim")


def _colour(c: int) -> str:
    return RUN_COLOURS[c % len(RUN_COLOURS)]


def verdict(moved: Moved) -> Verdict:
    """How much of the change in routing the first advantage map foretold."""
    share = moved.agreement
    first, last = float(moved.loss[0]), float(moved.loss[-1])
    text = (
        f"The loss went from {number(first)} to {number(last)} nats. {100 * share:.0f} % of the routing that moved "
        "went the way of the sign of the advantage before the first step; a coin would give 50 %."
    )
    return Verdict("partial" if share > 0.5 else "nothing", text)


def write_toy(toy: Toy, moved: Moved, folder: Path, command: str, environment: Sequence[tuple[str, Any]]) -> Path:
    """Draw the figure and write report.html in `folder`; returns its path."""
    path = folder / "figures" / "toy.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure = toy_figure(toy, moved)
        write_atomically(path, lambda to: figure.savefig(to, format="png"))
    picture = Picture("Routing and values", CAPTION, base64.b64encode(path.read_bytes()).decode())
    lead = (
        f"One head with two dimensions for keys and values, {toy.length} positions, {toy.classes} classes, {toy.steps} "
        "steps of gradient descent: small enough to see everything that moves."
    )
    rates = f"{toy.rate:g} for all four matrices" if toy.ratio == 1 else f"{toy.rate:g}, for w_v {toy.ratio:g} times it"
    settings = [
        ("data", f"{toy.length} vectors of {INPUTS} components from N(0, 1); targets are the classes in turn"),
        ("weights", f"N(0, {toy.deviation:g}²), seed {toy.seed}; everything is a function of the seed"),
        ("mask", "causal" if toy.causal else "none: every position sees all"),
        ("learning rate", rates),
        ("advantage", "A_ij = −(b_ij − E_α[b]_i), b_ij = u_i·v_j, u_i = ∂L/∂o_i; ∂L/∂s_ij = −α_ij A_ij"),
    ]
    sections = [
        Section(verdict=verdict(moved)),
        Section("The picture", pictures=[picture]),
        Section("What was trained", settings=settings),
        Section("How to reproduce", command=command, settings=list(environment)),
    ]
    return render(folder / "report.html", "Routing and values of a toy head", lead, sections)
