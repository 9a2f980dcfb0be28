"""Figures of length generalisation, ablations and geometry, drawn from their JSON results alone."""

from typing import TYPE_CHECKING, Any

from ..evaluation.summary import Interval
from ..report.style import (
    BAYES_COLOUR,
    DASHES,
    RUN_COLOURS,
    draw_mean,
    draw_seeds,
    legend_below,
    log_scale,
    new_figure,
    position_axis,
)
from .ablations import TUNNELS, by_part
from .figures import COLOUR, REFERENCE, WIDTH
from .geometry import settled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lengths_figure(result: dict[str, Any]) -> "Figure":
    """KL by position on the longest HMM sequences, and recall's accuracy against the number of pairs."""
    figure = new_figure(WIDTH, 4.3)
    left, right = figure.subplots(1, 2)
    hmm = [e for e in result["lengths"] if e["tunnel"] == "hmm"]
    longest = [e for e in hmm if e["size"] == max((x["size"] for x in hmm), default=0)]
    curves = {e["architecture"]: [Interval(**m) for m in e["kl_by_position"]] for e in longest}
    log_scale(left, [m.mean for curve in curves.values() for m in curve])
    for name, curve in curves.items():
        draw_mean(left, range(1, len(curve) + 1), curve, COLOUR[name], name)
    if longest:
        position_axis(left, longest[0]["size"], longest[0]["trained"])
        left.locator_params(axis="x", nbins=8)
    left.set_ylabel("KL(Bayes‖model) (bits)")
    left.set_title("hmm", pad=20)  # above the mark of the trained length
    for name in COLOUR:
        found = [e for e in result["lengths"] if (e["tunnel"], e["architecture"]) == ("recall", name)]
        if found:
            x = [e["size"] for e in found]
            draw_mean(right, x, [Interval(**e["spans"]["all"]["accuracy"]) for e in found], COLOUR[name], name)
            right.set_xticks(x)
            right.plot(x, [1 / n for n in x], color=REFERENCE, linestyle=DASHES[0], label="a guess among stored values")
    right.set_xlabel("pairs stored (the fewest were trained on)")
    right.set_ylabel("accuracy")
    right.set_ylim(0, 1.05)
    right.set_title("recall")
    legend_below(figure, [left, right], columns=5)
    return figure


def ablations_figure(result: dict[str, Any]) -> "Figure":
    """KL with each part off; dots are seeds, ticks are means, the grey line is the whole model."""
    from matplotlib.ticker import LogLocator

    groups = {name: by_part(result, name) for name in TUNNELS if by_part(result, name)}
    rows = max(len(parts) for parts in groups.values())
    figure = new_figure(WIDTH, 1.4 + 0.26 * rows)
    axes = figure.subplots(1, len(groups), squeeze=False)[0]
    for ax, (name, parts) in zip(axes, groups.items(), strict=True):
        log_scale(ax, [value for values in parts.values() for value in values], axis="x")
        for i, (part, values) in enumerate(parts.items()):
            colour = (
                BAYES_COLOUR if part == "whole" else RUN_COLOURS[part.startswith("layer") + 2 * ("attention" in part)]
            )
            ax.plot(values, [i] * len(values), "o", color=colour, markersize=4, alpha=0.6, markeredgewidth=0)
            ax.plot([sum(values) / len(values)], [i], "|", color=colour, markersize=12, markeredgewidth=2.2)
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,), numticks=5))
        ax.axvline(sum(parts["whole"]) / len(parts["whole"]), color=BAYES_COLOUR, linewidth=2, zorder=0.5)
        ax.set_yticks(range(len(parts)), list(parts))
        ax.set_ylim(len(parts) - 0.4, -0.6)
        ax.grid(axis="x")
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("KL (bits, log scale)")
        ax.set_title(name)
    return figure


def settling_figure(result: dict[str, Any]) -> "Figure":
    """How far attention maps are from their final ones, and the error, over training."""
    if "trajectory" not in result:
        return new_figure(WIDTH, 1)
    figure = new_figure(WIDTH, 3.9)
    left, right = figure.subplots(1, 2)
    t, frames = result["trajectory"], [s.frame for s in settled(result)]
    shown = [step for step in t["steps"] if step]
    at = [t["steps"].index(step) for step in shown]
    for ax, column, colour, title in (
        (left, "distance", RUN_COLOURS[1], "Attention: distance from the final maps"),
        (right, "kl", RUN_COLOURS[0], "Error: distance from Bayes"),
    ):
        values = [[t[column][i][e] for i in at] for e in range(len(frames))]
        if column == "kl":
            log_scale(ax, [v for curve in values for v in curve])
        draw_seeds(ax, shown, values, colour)
        means = [sum(column_values) / len(column_values) for column_values in zip(*values, strict=True)]
        ax.plot(shown, means, color=colour, linewidth=1.8, marker="o", markersize=3.4)
        for i, frame in enumerate(frames):
            label = "attention settled (each seed)" if i == 0 else None
            ax.axvline(frame, color="#555555", linewidth=1, linestyle=DASHES[0], label=label)
        ax.set_xlabel("training step")
        ax.set_title(title)
    left.set_ylabel("mean total variation distance")
    right.set_ylabel("KL(Bayes‖model) (bits, log scale)")
    legend_below(figure, [left])
    return figure


def clusters_figure(result: dict[str, Any]) -> "Figure":
    """Shares, correlations and probes of the last states, a group of bars for each architecture."""
    names = {
        "first_share": "first component's share",
        "spearman": "|Spearman| with entropy",
        "entropy_r2": "R² of entropy",
        "posterior_r2": "R² of posterior",
        "rand": "adjusted Rand index",
        "silhouette": "silhouette",
    }
    figure = new_figure(WIDTH, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, tunnel in zip(axes, ("bijection", "hmm"), strict=True):
        group = [s for s in result["states"] if s["tunnel"] == tunnel]
        keys = [key for key in names if group and key in group[0]]
        for i, s in enumerate(group):
            y = [k + 0.2 * (i - 1.5) for k in range(len(keys))]
            found = [Interval(**s[key]) for key in keys]
            colour = COLOUR[s["architecture"]]
            ax.plot([m.mean for m in found], y, "o", color=colour, markersize=5, label=s["architecture"])
            for m, at in zip(found, y, strict=True):
                if m.low is not None and m.high is not None:
                    ax.plot([max(m.low, -0.3), min(m.high, 1.1)], [at, at], color=colour, linewidth=1.4)
        ax.set_title(tunnel)
        ax.set_xlabel("value (mean and 95 % interval)")
        ax.set_xlim(-0.3, 1.1)
        ax.axvline(0, color=BAYES_COLOUR, linewidth=1, zorder=0.5)
        ax.grid(axis="x")
    axes[0].set_yticks(range(len(names)), list(names.values()))
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    legend_below(figure, axes, columns=4)
    return figure
