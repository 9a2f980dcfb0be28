"""The tables and the page of the experiment: what was run, what holds up of the claim, and what does not."""

import base64
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..evaluation.metrics import Metric
from ..evaluation.summary import Interval
from ..report.numbers import listed, number
from ..report.page import Grid, Line, Picture, Section, render
from ..report.verdict import Verdict
from .figures import write_figures
from .schedules import Schedule, label
from .summary import Paired, Summary

CAPTIONS = {
    "curves": (
        "Loss over steps",
        "Mean over seeds with its 95 % band. Left, the chain that is trained on, where the authors measure; right, a "
        "fresh chain of the same process and the exact filter on it. A schedule that only fits its own chain goes "
        "down on the left and up on the right.",
    ),
    "speedup": (
        "Speed-up by the authors' criterion",
        "How many times sooner the training loss passes the loss that SGD ends with. If speeding up any other matrix "
        "gains as much, the gain is a larger learning rate and not a matter of values following responsibilities.",
    ),
    "held-out": (
        "What it comes to",
        "The lowest loss on a fresh chain over training, above the exact filter's on the same chain, for SGD and the "
        "EM-like schedule at every rate and for the controls. Dots are seeds.",
    ),
}
COLUMNS = (
    Metric("speed-up", "95 %", "Steps of training / mean step at which the training loss passes SGD's mean final one."),
    Metric("seeds that pass", "", "Seeds whose training loss passes SGD's mean final loss."),
    Metric("training loss", "nats", "At the last step."),
    Metric("held-out loss", "nats", "On a fresh chain, at the last step."),
    Metric("lowest held-out", "nats", "Lowest over the recorded steps."),
    Metric("reach filter + ε", "", "Seeds whose held-out loss comes within ε of the exact filter's; median step."),
    Metric("entropy", "bits", "Mean predictive entropy on the fresh chain."),
    Metric("accuracy", "", "Share of the fresh chain's symbols that were the likeliest."),
    Metric("diverged", "", "Runs whose loss left 4 ln 8 or was not a number; left out of all means."),
)
COMPARISONS = (
    Metric("difference", "nats", "Mean over seeds of the first minus the second; below zero, the first is better."),
    Metric("95 % interval", "nats", "Student's t over seeds."),
    Metric("p", "", "Paired t-test, two-sided, not corrected for the number of comparisons."),
    Metric("Cohen's d", "", "Mean over standard deviation of the paired differences."),
)


def table_rows(summary: Summary) -> list[tuple[Schedule, list[str]]]:
    """One row of cells for every schedule, in the order of COLUMNS."""
    rows = []
    for s in summary.experiment.schedules:
        speed, reach, runs = summary.speedup(s.name), summary.reach(s.name), len(summary.by_schedule[s.name])
        cells = [
            f"{number(speed.value)} [{number(speed.low)}, {number(speed.high)}]" if s != summary.baseline else "1",
            f"{speed.reached} of {speed.seeds}" if s != summary.baseline else "",
            *(number(summary.mean(s.name, column).mean, 4) for column in ("loss", "held_out_loss")),
            number(summary.lowest_mean(s.name).mean, 4),
            f"{reach.reached} of {reach.seeds}" + (f", step {reach.median:g}" if math.isfinite(reach.median) else ""),
            number(summary.mean(s.name, "held_out_entropy").mean),
            number(summary.mean(s.name, "held_out_accuracy").mean),
            f"{summary.diverged(s.name)} of {runs + summary.diverged(s.name)}",
        ]
        rows.append((s, cells))
    return rows


def exact_cells(summary: Summary) -> list[str]:
    """The exact filter's line of the same table."""
    loss = number(summary.filter_mean("filter_loss"), 4)
    entropy, accuracy = (number(summary.filter_mean(f"filter_{name}")) for name in ("entropy", "accuracy"))
    return ["", "", "", loss, loss, "", entropy, accuracy, ""]


def comparisons(summary: Summary) -> list[tuple[str, Paired]]:
    """The paired comparisons that the claim turns on, in words."""
    base, names = summary.baseline, [s.name for s in summary.experiment.schedules]
    em = f"em {base.base:g}"
    found = []
    if em in names:
        found.append(("EM-like − SGD, training loss at the end", summary.compare(em, base.name, "loss")))
        found.append(("EM-like − SGD, held-out loss at the end", summary.compare(em, base.name, "held_out_loss")))
    for method in ("readout", "routing", "query", "key"):
        name = f"{method} {base.base:g}"
        if name in names and em in names:
            text = f"EM-like − {label(_named(summary, name), summary.experiment.ratio)}, held-out loss at the end"
            found.append((text, summary.compare(em, name, "held_out_loss")))
    if em in names and len({s.base for s in summary.experiment.schedules}) > 1:
        best_em, best_sgd = summary.best("em"), summary.best("sgd")
        text = f"EM-like − SGD, each at its best rate ({best_em.base:g} and {best_sgd.base:g}), lowest held-out loss"
        found.append((text, summary.compare(best_em.name, best_sgd.name, "lowest")))
    return found


def _named(summary: Summary, name: str) -> Schedule:
    return next(s for s in summary.experiment.schedules if s.name == name)


def paired_cells(found: Paired) -> list[str]:
    p = "–" if math.isnan(found.p) else ("< 0.0001" if found.p < 1e-4 else number(found.p, 2))
    return [number(found.difference.mean), _range(found.difference), p, number(found.effect)]


def _range(found: Interval) -> str:
    return "–" if found.low is None else f"{number(found.low)} to {number(found.high)}"


def verdict(summary: Summary) -> Verdict:
    """What holds up of "the EM-like schedule is faster", and what does not."""
    base, ratio = summary.baseline, summary.experiment.ratio
    em = f"em {base.base:g}"
    if not summary.by_schedule.get(em):
        return Verdict("nothing", "The EM-like schedule was not run, or diverged in every seed.")
    speed = summary.speedup(em)
    holds = (
        f"By the authors' criterion the EM-like schedule is {number(speed.value)} times faster than SGD "
        f"(95 % interval {number(speed.low)} to {number(speed.high)}, {speed.seeds} seeds)."
    )
    found = {
        _short(s, summary): summary.speedup(s.name)
        for s in summary.experiment.schedules
        if _is_control(s, summary) and summary.by_schedule[s.name]
    }
    if not found:
        return Verdict("partial", holds + _at_best(summary))
    words = ", ".join(f"{name} {number(v.value)}×" for name, v in found.items())
    matched = [name for name, v in found.items() if v.value >= speed.value]
    judged = f"So {', '.join(matched)} gain as much or more, from nothing but a larger rate." if matched else ""
    judged = judged or "No control gains as much."
    text = f"{holds} With {ratio:g} times the rate elsewhere instead: {words}. {judged}{_at_best(summary)}"
    return Verdict("partial" if matched else "close", text)


def _is_control(s: Schedule, summary: Summary) -> bool:
    if s.method == "sgd":
        return math.isclose(s.base, summary.experiment.ratio * summary.baseline.base)
    return s.method != "em" and s.base == summary.baseline.base


def _short(s: Schedule, summary: Summary) -> str:
    names = {"query": "w_q", "key": "w_k", "routing": "w_q with w_k", "readout": "w_out"}
    return names.get(s.method, "all four matrices")


def _at_best(summary: Summary) -> str:
    if len({s.base for s in summary.experiment.schedules}) < 2:
        return ""
    em, sgd = summary.best("em"), summary.best("sgd")
    found = summary.compare(em.name, sgd.name, "lowest")
    gap = found.difference
    if gap.low is None or gap.high is None:
        return ""
    if gap.low > 0:
        who = "SGD ends lower"
    elif gap.high < 0:
        who = "the EM-like schedule ends lower"
    else:
        who = "neither ends lower"
    told = f"{number(gap.mean)} nats (95 % interval {_range(gap)})"
    return f" Each at its best rate, {who} on a fresh chain: difference {told}."


def write_page(summary: Summary, folder: Path, command: str, environment: Sequence[tuple[str, Any]]) -> Path:
    """Draw the figures and write report.html in `folder`; returns its path."""
    paths = write_figures(summary, folder / "figures")
    pictures = [Picture(*CAPTIONS[name], base64.b64encode(path.read_bytes()).decode()) for name, path in paths.items()]
    e = summary.experiment
    lead = (
        f"One attention head, gradient descent for {e.steps:,} steps on one sticky chain of {e.length:,} symbols; "
        f"{len(summary.seeds)} seeds. Is the EM-like schedule, values {e.ratio:g} times faster than the rest, more "
        "than a larger learning rate?"
    )
    sections = list(_sections(summary, pictures, command, environment))
    return render(folder / "report.html", "EM-like against SGD", lead, sections)


def _sections(
    summary: Summary, pictures: Sequence[Picture], command: str, environment: Sequence[tuple[str, Any]]
) -> Iterator[Section]:
    e = summary.experiment
    yield Section(verdict=verdict(summary))
    lines = [Line("mean" if s.method == "em" else "seed", label(s, e.ratio), cells) for s, cells in table_rows(summary)]
    lines.append(Line("exact", "exact filter", exact_cells(summary)))
    final = number(summary.mean(summary.baseline.name, "loss").mean, 4)
    weak = (
        f"The speed-up measures against SGD's own final loss, {final} nats after {e.steps:,} steps at rate "
        f"{summary.baseline.base:g}, on the chain that is trained on; a uniform guess has {number(math.log(8), 4)}. "
        f"ε is {summary.epsilon:g} nats. Means are over seeds that did not diverge."
    )
    yield Section("Result", texts=[weak], tables=[Grid("schedule (base rate)", COLUMNS, lines)])
    paired = [Line("seed", text, paired_cells(found)) for text, found in comparisons(summary)]
    if paired:
        yield Section("Paired comparisons", tables=[Grid("comparison", COMPARISONS, paired)])
    yield Section("Figures", pictures=pictures)
    matrix = "the authors' (stays with 0.3498)" if e.authors_matrix else "stays with exactly 0.3"
    settings = [
        ("chain", f"{e.length} symbols out of 8, {matrix}, seen in 20 dimensions through noise of unit variance"),
        ("model", f"one causal head, d_k {e.head}, d_v {e.values}, linear readout, weights N(0, {e.deviation:g}²)"),
        ("seeds", listed(summary.seeds)),
        ("data", "chains and weights are functions of the seed (Philox), the same for every schedule"),
    ]
    yield Section("What was trained", settings=settings)
    definitions = [(m.label, m.definition) for m in (*COLUMNS, *COMPARISONS)]
    best = "The rate with the lowest mean lowest held-out loss; picked on the same seeds, which flatters both methods."
    yield Section("What the numbers mean", settings=[*definitions, ("best rate", best)])
    yield Section("How to reproduce", command=command, settings=list(environment))
