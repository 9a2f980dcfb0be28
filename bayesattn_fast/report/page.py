"""report.html: one page that says what was trained, how good it is, and what every number means. Nothing is fetched."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..evaluation.metrics import METRICS, Metric
from ..evaluation.references import BEST_CONSTANT, EXACT, POSITION_ONLY, UNIFORM
from ..evaluation.summary import MODEL
from ..storage import write_text
from .figures import write_comparison_figure, write_figures
from .numbers import listed, number
from .results import Results
from .run import RunRecord, read_run
from .tables import SHOWN, by_task, informed_notes, length_lines, table_lines
from .verdict import Verdict, verdict

REFERENCES = {
    UNIFORM: "The same probability for every answer.",
    BEST_CONSTANT: "One distribution for every question: the average of the exact predictive, the best there is. Its "
    "entropy errors are those of the best single number, which may do better than that distribution's own entropy.",
    POSITION_ONLY: "One distribution for each position, the average there. Its entropy errors are those of the best "
    "number for each position. Its entropy MAE is 0 by construction: that score cannot tell it from Bayes.",
    EXACT: "Bayes' rule itself, from the true process: no model can do better.",
}
CAPTIONS = {
    "entropy": (
        "Entropy by position",
        "How uncertain the predictions are, in bits, after each piece of evidence. The wide grey track is the exact "
        "posterior; a model that reasons as Bayes does runs inside it. Thin lines are single seeds. The best "
        "position-only predictor is on the track by construction, though it reads no context; the next figure tells it "
        "from Bayes.",
    ),
    "kl": (
        "Distance by position",
        "KL divergence from the exact predictive, in bits, on a logarithmic scale: ten times lower is one step down. "
        "Dashed lines are predictors that were not trained. A value of zero has no place on this scale.",
    ),
    "loss": (
        "Training",
        "Left: the loss on training batches, averaged over short stretches of steps, and the lowest loss that any "
        "predictor can have on them. Right: the difference, on a logarithmic scale, with gaps where chance puts it "
        "below zero. Diamonds are exact expectations over the held-out sequences.",
    ),
    "attention": (
        "Attention over training",
        "Every head, mean over seeds, on single training batches; a colour is a layer. Left: the variance of the "
        "advantage, what better routing could still gain, for the sum of a sequence's losses. Middle: the entropy of "
        "the routing; 0 is a hard choice of one key. Right: the share of all responsibility that the heaviest key of a "
        "sequence bears.",
    ),
    "predictors": (
        "The model among predictors that learnt nothing",
        "Dots are seeds, ticks are means. A model that does not stand clearly to the left of the others has learnt "
        "little, whatever its score.",
    ),
}


@dataclass(frozen=True)
class Line:
    """A line of a table and how it looks."""

    kind: str
    name: str
    cells: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table of the page."""

    first: str
    columns: Sequence[Metric]
    lines: Sequence[Line]


@dataclass(frozen=True)
class Picture:
    """A figure of the page, its PNG bytes in base64."""

    title: str
    caption: str
    data: str


@dataclass(frozen=True)
class Section:
    """A part of the page; what is empty is left out."""

    title: str = ""
    verdict: Verdict | None = None
    warnings: Sequence[str] = ()
    texts: Sequence[str] = ()
    settings: Sequence[tuple[str, Any]] = ()
    command: str = ""
    tables: Sequence[Grid] = ()
    pictures: Sequence[Picture] = field(default=())


def write_report(folder: Path | str) -> Path:
    """Draw the figures and write report.html of a run folder; returns the path of the page.

    ValueError where the folder is not a whole run.
    """
    record = read_run(folder)
    paths = write_figures(record, record.folder / "figures")
    return render(record.folder / "report.html", record.title, _lead(record), list(run_sections(record, paths)))


def write_comparison(folders: Sequence[Path | str], page: Path | str) -> Path:
    """Write one page about several runs, grouped by task; returns its path."""
    records = read_runs(folders)
    groups = by_task(records)
    page = Path(page)
    page.parent.mkdir(parents=True, exist_ok=True)
    sections = [_comparison_section(group, page, i) for i, group in enumerate(groups)]
    text = f"{len(records)} runs, {len(groups)} task{'s' * (len(groups) > 1)}. Scores compare within a task only."
    return render(page, "Runs side by side", text, [*sections, _definitions(list(records.values()))])


def read_runs(folders: Sequence[Path | str]) -> dict[str, RunRecord]:
    """Runs by label: the folder's name, or its whole path where two folders share a name."""
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise ValueError("compare takes at least one run folder")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("compare was given the same run folder twice")
    names = [path.resolve().name for path in paths]
    labels = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    return {label: read_run(path) for label, path in zip(labels, paths, strict=True)}


def run_sections(record: RunRecord, figures: Mapping[str, Path]) -> Iterator[Section]:
    """The parts of a run's page, top to bottom."""
    results = record.results
    notes = [text for text in results.warnings if "bug" not in text]
    if record.state.get("finished") is False:
        notes.append(f"The run is not finished: it stands at step {record.state.get('step')}.")
    yield Section(verdict=verdict(results), warnings=notes)
    about = (
        f"{results.sequences:,} held-out sequences per seed, {results.scored} scored positions in each, after training "
        f"step {results.step:,}. The lines below the model are predictors that were not trained."
    )
    told = [f"{text}." for text in informed_notes(results)]
    yield Section("Result", texts=[about, *told], tables=[_result_grid(results)])
    if lengths := list(length_lines(record.rows)):
        lines = [Line("mean" if name == MODEL else "reference", name, cells) for name, *cells in lengths]
        yield Section("Beyond the trained length", tables=[Grid("predictor", LENGTH_COLUMNS, lines)])
    yield Section("Figures", pictures=[_picture(name, path) for name, path in figures.items()])
    yield Section("What was trained", settings=list(_settings(record)))
    yield _definitions([record])
    yield _reproduction(record)


LENGTH_COLUMNS = (
    Metric("positions", "", "Scored positions: trained + beyond."),
    *(
        Metric(f"{METRICS[metric].label}, {span}", METRICS[metric].unit, METRICS[metric].definition)
        for metric in ("kl", "entropy_abs_error")
        for span in ("trained", "beyond")
    ),
)


def _lead(record: RunRecord) -> str:
    results = record.results
    return (
        f"A {record.model} trained on the {record.tunnel} wind tunnel, a task whose exact Bayesian answer is known at "
        f"every scored position; seed{'s' * (len(results.seeds) > 1)} {listed(results.seeds)}."
    )


def _result_grid(results: Results) -> Grid:
    lines = [Line("exact" if name == EXACT else kind, name, cells) for kind, name, cells in table_lines(results)]
    return Grid("predictor", [METRICS[metric] for metric in SHOWN], lines)


def _picture(name: str, path: Path) -> Picture:
    return Picture(*CAPTIONS[name], base64.b64encode(path.read_bytes()).decode())


def _settings(record: RunRecord) -> Iterator[tuple[str, str]]:
    for part in ("tunnel", "model", "training"):
        values = record.config.get(part) or {}
        yield part, ", ".join(f"{name} {_plain(value)}" for name, value in values.items())
    yield "seeds", listed(record.results.seeds)
    floor = record.results.summary("bayes_floor", EXACT).mean
    yield "Bayes floor", f"{number(floor, 4)} nats per answer, on the held-out sequences"


def _plain(value: Any) -> str:
    return "–" if value is None or value == "" else str(value)


def _definitions(records: Sequence[RunRecord]) -> Section:
    metrics = [(METRICS[name].label, METRICS[name].definition) for name in (*SHOWN, "loss", "bayes_floor")]
    names = dict.fromkeys(name for record in records for name in record.results.references)
    references = [(name, REFERENCES.get(name, "An untrained predictor of this task.")) for name in names]
    interval = (
        "± 95 % interval",
        "Student's t over seeds: how far the mean over all possible seeds may be from this one. Two or three seeds "
        "give a wide one. Seeds that diverged are left out of means.",
    )
    return Section("What the numbers mean", settings=[*metrics, interval, *references])


def _reproduction(record: RunRecord) -> Section:
    environment = record.config.get("environment")
    known = list(environment.items()) if isinstance(environment, dict) else []
    text = "The data and the initial weights are functions of the seeds, so the same command gives the same run."
    return Section(
        "How to reproduce",
        texts=[text],
        command=_plain(record.config.get("command")),
        settings=[(name, _plain(value)) for name, value in known],
    )


def _comparison_section(group: Mapping[str, RunRecord], page: Path, index: int) -> Section:
    first = next(iter(group.values()))
    lines = []
    for label, record in group.items():
        results = record.results
        summaries = [results.summary(metric) for metric in SHOWN]
        name = f"{label} ({record.model}, {summaries[0].seeds} seed{'s' * (summaries[0].seeds != 1)})"
        lines.append(Line("mean", name, [number(summary.mean) for summary in summaries]))
    for name in first.results.references:
        cells = [number(first.results.summary(metric, name).mean) for metric in SHOWN]
        lines.append(Line("exact" if name == EXACT else "reference", name, cells))
    path = write_comparison_figure(group, page.parent / "figures" / f"{page.stem}-{index + 1}.png")
    caption = "Mean over seeds with its 95 % band, KL divergence in bits on a logarithmic scale."
    picture = Picture("Distance by position", caption, base64.b64encode(path.read_bytes()).decode())
    sizes = ", ".join(f"{name} {_plain(value)}" for name, value in first.config["tunnel"].items() if name != "name")
    warnings = [f"{label}: {text}" for label, record in group.items() for text in record.results.warnings]
    return Section(
        f"{first.tunnel}",
        texts=[f"{sizes}; {first.results.scored} scored positions. References are those of {next(iter(group))}."],
        warnings=warnings,
        tables=[Grid("run", [METRICS[metric] for metric in SHOWN], lines)],
        pictures=[picture],
    )


def render(path: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write the page of these sections; returns its path."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("bayesattn_fast", "report"), autoescape=True)
    write_text(path, environment.get_template("page.html").render(title=title, lead=lead, sections=sections))
    return path
