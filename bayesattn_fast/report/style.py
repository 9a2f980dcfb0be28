"""One look for every figure: colours that colour-blind readers tell apart, quiet axes, legends outside the data.

Colours are those of Okabe and Ito (2008). The exact posterior is always the wide grey track, the model always blue.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..evaluation.summary import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL_COLOUR = "#0072B2"
BAYES_COLOUR = "#9A9A9A"
REFERENCE_COLOURS = ("#E69F00", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#7A5C00", "#5D3A9B", "#000000")
RUN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ((0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)))

SETTINGS: Any = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.07,
    "figure.constrained_layout.w_pad": 0.07,
    "savefig.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Settings for the figures made and saved inside; no display and no global state of pyplot is touched."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def legend_below(figure: "Figure", axes: Sequence["Axes"], columns: int = 3) -> None:
    """One legend under the panels, each label once, in no more columns than the longest label leaves room for."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        labels = [fill(label, 44) for label in handles]
        longest = max(len(line) for label in labels for line in label.splitlines())
        columns = min(columns, len(handles), max(1, 120 // (longest + 7)))
        figure.legend(handles.values(), labels, loc="outside lower center", ncols=columns)


def position_axis(ax: "Axes", scored: int, trained: int) -> None:
    """Scored positions 1 … P along x, with the end of training marked where positions go on beyond it."""
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel("scored position")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, min_n_ticks=1))
    pad = max(0.3, 0.015 * scored)
    ax.set_xlim(1 - pad, scored + pad)
    if trained < scored:
        ax.axvline(trained + 0.5, color="#555555", linewidth=1, linestyle=(0, (2, 2)))
        ax.annotate(
            "trained up to here ",
            (trained + 0.5, 1),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="bottom",
            fontsize=8,
            color="#555555",
        )


def draw_seeds(ax: "Axes", x: Sequence[float], curves: Sequence[Sequence[float]], colour: str) -> None:
    """Each seed as a thin line; a great many are drawn fainter."""
    alpha = min(0.45, max(0.06, 2.5 / max(1, len(curves))))
    for values in curves:
        ax.plot(x, values, color=colour, linewidth=0.8, alpha=alpha)


def draw_mean(ax: "Axes", x: Sequence[float], means: Sequence[Interval], colour: str, label: str) -> None:
    """The mean over seeds with its 95 % band; dots where positions are few enough to be told apart.

    On a logarithmic axis, to be set beforehand, a band that reaches zero goes down to the edge.
    """
    marker = "o" if len(x) <= 40 else None
    ax.plot(x, [m.mean for m in means], color=colour, linewidth=1.6, marker=marker, markersize=3.4, label=label)
    if all(m.low is not None and m.high is not None for m in means):
        floor = ax.get_ylim()[0] if ax.get_yscale() == "log" else -math.inf
        lows = [max(floor, m.low if m.low is not None else m.mean) for m in means]
        highs = [m.high if m.high is not None else m.mean for m in means]
        ax.fill_between(x, lows, highs, color=colour, alpha=0.18, linewidth=0)


def log_scale(ax: "Axes", values: Sequence[float], axis: str = "y") -> None:
    """Logarithmic from a third of the smallest positive value; what is zero or negative is left out."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    positive = [value for value in values if 0 < value < math.inf]
    lowest, highest = max(min(positive, default=1e-3), 1e-9), max(positive, default=1.0)
    wide = highest > 100 * lowest
    (ax.set_yscale if axis == "y" else ax.set_xscale)("log", nonpositive="mask")
    (ax.set_ylim if axis == "y" else ax.set_xlim)(lowest / 3, max(highest, lowest * 1.01) * 2)
    ticks = ax.yaxis if axis == "y" else ax.xaxis
    ticks.set_major_locator(LogLocator(subs=(1.0,) if wide or lowest < 1e-3 else (1.0, 3.0)))
    ticks.set_major_formatter(FuncFormatter(_power))
    ticks.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _power(value: float, _: object) -> str:
    """Tick label: 0.01 down to a thousandth, powers of ten below."""
    return f"{value:g}" if value > 9e-4 else f"$10^{{{round(math.log10(value))}}}$"
