"""Figures, tables and page of the two time scales: which settles first, routing or values, in every layer and head."""

import base64
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..evaluation.metrics import Metric
from ..evaluation.summary import Interval, interval
from ..report.numbers import number
from ..report.page import Grid, Line, Picture, Section, render
from ..report.style import DASHES, RUN_COLOURS, draw_seeds, house_style, legend_below, new_figure
from ..report.verdict import Verdict
from ..storage import write_atomically
from .two_timescale import DISTANCES, FOLDER, Replay, Settled, settling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.2
FLOOR = 1e-3
"""Distances below this are drawn at the edge: the last one is 0."""
LOOKS = (("routing", RUN_COLOURS[0], "o"), ("values", RUN_COLOURS[1], "D"))
COLUMNS = (
    Metric("routing settles", "step", "Median over seeds; a seed that moves until the end counts as later than all."),
    Metric("values settle", "step", "The same of the values."),
    Metric("routing first", "seeds", "Seeds in which routing settled at an earlier probe than the values did."),
    Metric("values first", "seeds", "Seeds in which it was the other way round."),
    Metric("together", "seeds", "Both at the same probe."),
    Metric("neither", "seeds", "Both moved until the end."),
)
CAPTIONS = {
    "distances": (
        "Distance from the end, head by head",
        "Thin lines are seeds, thick ones their mean; distances on a logarithmic scale. Routing: mean "
        "total variation between a query's responsibilities now and at the last step, from 0 to 1. Values: "
        "‖v − v_T‖ / ‖v_T‖. The dashed line is the threshold; both end at 0 because the end is what they are "
        "compared with.",
    ),
    "settled": (
        "When each head settles",
        "Dots are seeds, ticks are medians; a dot at the right edge moved until the end. Left, both below the "
        "threshold itself; right, both below that share of their own distance at step 0, so that a head whose "
        "routing hardly had a way to go gains nothing by it.",
    ),
}


class HeadSummary(NamedTuple):
    """One head over seeds; None where it moved until the end in half of the seeds or more."""

    layer: int
    head: int
    routing: float | None
    values: float | None
    counts: dict[str, int]
    """"routing", "values", "together", "neither" → seeds in which that was first."""

    @property
    def name(self) -> str:
        return f"layer {self.layer}, head {self.head}"

    def cells(self) -> list[str]:
        steps = ["until the end" if at is None else f"{at:g}" for at in (self.routing, self.values)]
        return [*steps, *(str(count) for count in self.counts.values())]


def by_head(found: Sequence[Settled]) -> list[HeadSummary]:
    """All heads in order of layer and number."""
    heads: dict[tuple[int, int], list[Settled]] = {}
    for settled in found:
        heads.setdefault((settled.layer, settled.head), []).append(settled)
    return [
        HeadSummary(*at, _median([s.routing for s in group]), _median([s.values for s in group]), counts(group))
        for at, group in sorted(heads.items())
    ]


def counts(found: Sequence[Settled]) -> dict[str, int]:
    """How often each came first."""
    return {word: sum(s.first == word for s in found) for word in ("routing", "values", "together", "neither")}


def _median(steps: Sequence[int | None]) -> float | None:
    middle = statistics.median(float("inf") if step is None else step for step in steps)
    return None if middle == float("inf") else middle


def lead_of_routing(found: Sequence[Settled]) -> Interval:
    """Over seeds: the share of heads in which routing came first minus the share in which values did, −1 to 1."""
    seeds = sorted({s.seed for s in found})
    shares = []
    for seed in seeds:
        own = [s for s in found if s.seed == seed]
        first = counts(own)
        shares.append((first["routing"] - first["values"]) / len(own))
    return interval(shares)


def verdict(found: Sequence[Settled], relative: Sequence[Settled], threshold: float) -> Verdict:
    """Whether routing comes first, by the definition and by the control that takes away a head start."""
    plain, control = counts(found), counts(relative)
    lead, fair = lead_of_routing(found), lead_of_routing(relative)
    text = (
        f"Of {len(found)} heads (all layers and seeds), routing came within {threshold:g} of its end first in "
        f"{plain['routing']}, values in {plain['values']}, both at the same probe in {plain['together']}, neither in "
        f"{plain['neither']}. With each measured as a share of its own distance at step 0: routing first in "
        f"{control['routing']}, values in {control['values']}, together {control['together']}, neither "
        f"{control['neither']}. Lead of routing in heads, per seed: {_shown(lead)} and {_shown(fair)}. "
    )
    if _above(lead) and _above(fair):
        return Verdict("close", text + "Routing settles first, by both measures.")
    if _above(lead):
        word = "Routing settles first by the threshold itself, but not as a share of the way that it had to go."
        return Verdict("partial", text + word)
    return Verdict("nothing", text + "That routing settles before values does not show in this run.")


def _above(lead: Interval) -> bool:
    """The whole interval above 0; with one seed, which has none, more than half of the heads."""
    return lead.low > 0 if lead.low is not None else lead.mean > 0.5


def _shown(lead: Interval) -> str:
    if lead.low is None or lead.high is None:
        return number(lead.mean)
    return f"{number(lead.mean)} [{number(max(-1.0, lead.low))}, {number(min(1.0, lead.high))}]"


def grid(found: Sequence[Settled]) -> Grid:
    """One line for each head."""
    return Grid("head", COLUMNS, [Line("seed", head.name, head.cells()) for head in by_head(found)])


def distances_figure(rows: Sequence[dict[str, Any]], threshold: float) -> "Figure":
    """A panel for each head, a row of them for each layer."""
    layers, heads = (1 + max(row[part] for row in rows) for part in ("layer", "head"))
    figure = new_figure(WIDTH, 0.9 + (1.9 if layers < 4 else 1.4) * layers)
    axes = figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            ax, own = axes[layer][head], [r for r in rows if (r["layer"], r["head"]) == (layer, head)]
            _draw_distances(ax, own, threshold)
            ax.set_title(f"layer {layer}, head {head}" if heads <= 4 else f"{layer}.{head}", fontsize=9)
    for row in axes:
        row[0].set_ylabel("distance")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    highest = max(row[column] for row in rows for column in DISTANCES)
    axes[0][0].set(ylim=(FLOOR, 1.5 * max(threshold, highest)), xlim=(0, None))
    legend_below(figure, [axes[0][0]])
    return figure


def _draw_distances(ax: "Axes", rows: Sequence[dict[str, Any]], threshold: float) -> None:
    steps = sorted({row["step"] for row in rows})
    ax.set_yscale("log")
    for column, (name, colour, _) in zip(DISTANCES, LOOKS, strict=True):
        curves: dict[int, list[float]] = {}
        for row in sorted(rows, key=lambda row: row["step"]):
            curves.setdefault(row["seed"], []).append(max(FLOOR, row[column]))
        draw_seeds(ax, steps, list(curves.values()), colour)
        means = [statistics.fmean(values) for values in zip(*curves.values(), strict=True)]
        ax.plot(steps, means, color=colour, linewidth=1.8, label=name)
    ax.axhline(threshold, color="#555555", linewidth=1, linestyle=DASHES[0], label="threshold")
    ax.minorticks_off()


def settled_figure(found: Sequence[Settled], relative: Sequence[Settled], last: int) -> "Figure":
    """Two panels of dots, a line for each head."""
    heads = by_head(found)
    figure = new_figure(WIDTH, 1.5 + 0.34 * max(3, len(heads)))
    axes = figure.subplots(1, 2, sharey=True)
    for ax, group, title in zip(axes, (found, relative), ("Below the threshold", "As a share of step 0"), strict=True):
        for y, head in enumerate(by_head(group)):
            own = [s for s in group if (s.layer, s.head) == (head.layer, head.head)]
            for name, colour, marker in LOOKS:
                _dots(ax, y, name, colour, marker, own, last)
        ax.set_xlim(-0.02 * last, 1.05 * last)
        ax.set(title=title, xlabel="step at which it has settled")
        ax.axvline(last, color="#555555", linewidth=1, linestyle=DASHES[0], label="end of training")
        ax.grid(axis="x")
        ax.grid(visible=False, axis="y")
    axes[0].set_yticks(range(len(heads)), [head.name for head in heads])
    axes[0].set_ylim(len(heads) - 0.5, -0.5)
    legend_below(figure, list(axes), columns=3)
    return figure


def _dots(ax: "Axes", y: int, name: str, colour: str, marker: str, own: Sequence[Settled], last: int) -> None:
    steps = [getattr(s, name) for s in own]
    shift = -0.14 if name == "routing" else 0.14
    shown = [last if step is None else step for step in steps]
    alpha = max(0.2, min(0.7, 6 / len(shown)))
    look: Any = {"color": colour, "markersize": 4, "alpha": alpha, "markeredgewidth": 0, "linestyle": ""}
    ax.plot(shown, [y + shift] * len(shown), marker=marker, label=name if y == 0 else None, **look)
    middle = _median(steps)
    ax.plot([last if middle is None else middle], [y + shift], "|", color=colour, markersize=12, markeredgewidth=2.2)


def write_page(
    replayed: Replay, folder: Path, threshold: float, title: str, command: str, environment: Sequence[tuple[str, Any]]
) -> Path:
    """Draw the figures and write RUN/two-timescale/report.html; returns its path."""
    folder = folder / FOLDER
    found, relative = (settling(replayed.rows, threshold, share) for share in (False, True))
    last = max(row["step"] for row in replayed.rows)
    with house_style():
        drawn = {
            "distances": distances_figure(replayed.rows, threshold),
            "settled": settled_figure(found, relative, last),
        }
        pictures = [Picture(*CAPTIONS[name], _save(folder, name, figure)) for name, figure in drawn.items()]
    steps = sorted({row["step"] for row in replayed.rows})
    settings = [
        ("run", f"{title}, trained again from its configuration to step {last:,} and probed at {len(steps)} steps"),
        ("largest difference from the checkpoint", f"{number(replayed.drift)} of its largest weight"),
        ("settled", f"the first probed step from which on the distance stays below {threshold:g}"),
    ]
    lead = (
        "When do a head's responsibilities come to rest over training, and when do its values? The two time scales of "
        "“Gradient Dynamics of Attention”, measured on held-out sequences."
    )
    sections = [
        Section(verdict=verdict(found, relative, threshold), warnings=list(warnings(replayed))),
        Section("By the threshold", tables=[grid(found)]),
        Section("As a share of the distance at step 0", tables=[grid(relative)]),
        Section("Figures", pictures=pictures),
        Section("What was measured", settings=[*settings, *((m.label, m.definition) for m in COLUMNS)]),
        Section("How to reproduce", command=command, settings=list(environment)),
    ]
    return render(folder / "report.html", f"Two time scales: {title}", lead, sections)


def warnings(replayed: Replay) -> Iterator[str]:
    """What makes the numbers doubtful."""
    if replayed.drift > 1e-3:
        yield (
            f"Trained again, the run ends {number(replayed.drift)} of its largest weight away from its checkpoint: "
            "another machine, thread count or version rounds otherwise. Distances are to the checkpoint."
        )


def _save(folder: Path, name: str, figure: "Figure") -> str:
    path = folder / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda to: figure.savefig(to, format="png"))
    return base64.b64encode(path.read_bytes()).decode()
