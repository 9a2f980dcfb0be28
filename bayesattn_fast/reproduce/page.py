"""The page of a reproduction: every claim with its verdict first, then each experiment with tables and figures."""

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..evaluation.metrics import METRICS, Metric
from ..evaluation.references import EXACT
from ..report.numbers import listed, number
from ..report.page import Grid, Line, Picture, Section
from ..storage import write_text
from . import ablations, dynamics, geometry, lengths, table2
from .cells import TUNNELS
from .claims import Claim, shown
from .experiments import EXPERIMENTS

CLAIM_COLUMNS = (
    Metric("the papers", "", "The number that the papers print, at their scale."),
    Metric("here", "", "Mean over seeds, with the 95 % interval (Student's t) in brackets."),
    Metric("verdict", "", "By the rule beside it."),
    Metric("rule", "", "When the verdict says so."),
)


def write_page(results: Mapping[str, dict[str, Any]], folder: Path, command: str, environment: dict[str, str]) -> Path:
    """Write report.html of all results at hand; returns its path."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("bayesattn_fast", "report"), autoescape=True).get_template("page.html")
    first = next(iter(results.values()))
    lead = (
        "Claims of “The Bayesian Geometry of Transformer Attention” and “Gradient Dynamics of Attention”, tested at "
        f"the {first['scale']} scale with seeds {listed(first['seeds'])}. Scores are distances from an exact posterior."
    )
    sections = list(_sections(results, folder, command, environment))
    path = folder / "report.html"
    write_text(path, template.render(title="The papers' claims, reproduced", lead=lead, sections=sections))
    return path


def all_claims(results: Mapping[str, dict[str, Any]]) -> list[tuple[str, Claim]]:
    """(experiment, claim) in the order of the page."""
    return [(name, claim) for name, result in results.items() for claim in EXPERIMENTS[name].claims(result)]


def _sections(
    results: Mapping[str, dict[str, Any]], folder: Path, command: str, environment: dict[str, str]
) -> Iterator[Section]:
    lines = [
        Line("claim", claim.text, [claim.paper, claim.ours, claim.verdict, claim.rule])
        for _, claim in all_claims(results)
    ]
    words = [claim.verdict for _, claim in all_claims(results)]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    about = (
        f"{len(words)} claims: {counts}. The scale is smaller than the papers': a claim that does not hold here may "
        "need more training or larger models, and one that holds may hold for reasons of the small size."
    )
    yield Section("Claims", texts=[about], tables=[Grid("claim", CLAIM_COLUMNS, lines)])
    for name, result in results.items():
        pictures = [_picture(folder / "figures" / f"{name}-{key}.png", *text) for key, text in CAPTIONS[name].items()]
        if name == "table2":
            yield from _table2(result, [p for p in pictures if p])
        else:
            about = " ".join((MODULES[name].__doc__ or "").split())
            yield Section(TITLES[name], texts=[about], pictures=[p for p in pictures if p])
    yield Section("How to reproduce", command=command, settings=list(environment.items()))


def _picture(path: Path, title: str, caption: str) -> Picture | None:
    return Picture(title, caption, base64.b64encode(path.read_bytes()).decode()) if path.exists() else None


CAPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "table2": {
        "positions": (
            "Distance from the exact posterior by position",
            "KL in bits on a logarithmic scale, mean and 95 % band over seeds; dashed, the best predictor that knows "
            "the position and nothing else, computed exactly.",
        ),
        "steps": (
            "Distance over training",
            "The same, averaged over positions, on held-out sequences; dashed, the position-only level.",
        ),
    },
    "length-generalisation": {
        "curves": (
            "Beyond the trained length",
            "Left, KL by position on the longest sequences of the HMM, with the end of training marked. Right, the "
            "accuracy of recall as more pairs are stored. Mean and 95 % band over seeds.",
        ),
    },
    "ablations": {
        "parts": (
            "What each part is worth",
            "KL from the exact posterior with one part switched off, without training again. “head 1.0” is head 0 of "
            "layer 1; “attention ≥ 1” has no attention in layers 1 and above. Dots are seeds, ticks their means, "
            "the grey line is the whole model.",
        ),
    },
    "geometry": {
        "settling": (
            "What settles first",
            "Left, mean total variation distance of the attention maps at scored positions from those at the end. "
            "Right, the error. Dashed: from there on attention stays within a tenth of the way it had to go.",
        ),
        "states": (
            "The last states of four architectures",
            "States after the last norm at scored positions. Clusters are compared with the likeliest hidden state; "
            "probes are fitted on half of the states and scored on the other half. Values below −0.3 are not drawn.",
        ),
    },
    "dynamics": {},
}
TITLES = {
    "length-generalisation": "Length generalisation",
    "ablations": "Ablations",
    "geometry": "Geometry",
    "dynamics": "Gradient dynamics",
}
MODULES = {
    "length-generalisation": lengths,
    "ablations": ablations,
    "geometry": geometry,
    "dynamics": dynamics,
}


def _table2(result: dict[str, Any], pictures: list[Picture]) -> Iterator[Section]:
    rule = (table2.__doc__ or "").split("A primitive", 1)[1]
    yield Section(
        "Table 2: four architectures, five tunnels",
        texts=[
            "Parameter counts of a tunnel match within 2 %. Below each tunnel's models stand predictors that were not "
            "trained. Tokens per second are training speed with one thread on a shared machine: orders of magnitude.",
            f"A primitive{' '.join(rule.split())}",
        ],
    )
    for tunnel in TUNNELS:
        group = [c for c in result["cells"] if c["tunnel"] == tunnel]
        if group:
            yield Section(tunnel, tables=[Grid("predictor", TABLE2_COLUMNS, list(_table2_lines(group)))])
    yield Section(pictures=pictures)


TABLE2_COLUMNS = (
    *(METRICS[name] for name in table2.SHOWN),
    Metric("the papers", "", "Entropy MAE in bits, or accuracy, at their sizes."),
    Metric("primitive", "", "Realised by the rule above."),
    Metric("parameters", "", "Of one seed."),
    Metric("tokens/s", "", "Input positions trained per second, all seeds together."),
)


def _table2_lines(group: list[dict[str, Any]]) -> Iterator[Line]:
    for c in group:
        cells = [shown({k: c["metrics"][name][k] for k in ("mean", "low", "high", "seeds")}) for name in table2.SHOWN]
        primitive = c["primitive"] if c["tunnel"] in table2.PRIMITIVES else ""
        speed = number(c["tokens_per_second"], 2)
        size = f"{c['parameters']:,} ({c['layers']} × {c['d_model']})"
        yield Line("mean", c["architecture"], [*cells, c["published"], primitive, size, speed])
    for name, scores in group[0]["references"].items():
        cells = [number(scores[metric]) for metric in table2.SHOWN]
        yield Line("exact" if name == EXACT else "reference", name, [*cells, "", "", "", ""])
