"""Paper II: the EM-like schedule against SGD and its controls on the sticky chain, by `bayesattn dynamics em-vs-sgd`.

At the quick scale chains are short, T = 256; at the paper scale T = 2000, as the authors have it.
"""

from pathlib import Path
from typing import Any

from ..dynamics import Experiment, Summary, run
from .claims import Claim, judged

LENGTHS = {"quick": 256, "paper": 2000}


def dynamics(scale: str, seeds: tuple[int, ...], runs: Path) -> dict[str, Any]:
    """Speed-ups by the authors' criterion of every schedule at the base rate, ready for JSON."""
    experiment = Experiment(length=LENGTHS[scale], authors_matrix=True, rates=(0.01, 0.1))
    summary = Summary(experiment, run(experiment, seeds, runs / "em-vs-sgd"))
    base = summary.baseline
    found = {
        s.name: {key: float(value) for key, value in summary.speedup(s.name)._asdict().items()}
        for s in experiment.schedules
        if s.name != base.name and summary.by_schedule[s.name] and (s.base == base.base or s.method == "sgd")
    }
    return {"scale": scale, "seeds": list(seeds), "length": experiment.length, "base": base.base, "speedups": found}


def claims(result: dict[str, Any]) -> list[Claim]:
    """What Paper II says of the schedule, judged."""
    found, em = result["speedups"], result["speedups"][f"em {result['base']:g}"]
    controls = {name: s["value"] for name, s in found.items() if not name.startswith("em")}
    matched = [name for name, value in controls.items() if value >= em["low"]]
    told = ", ".join(f"{name} {value:.2f}" for name, value in controls.items())
    ours = f"{em['value']:.2f} [{em['low']:.2f}, {em['high']:.2f}]; ten times the rate elsewhere: {told}"
    word = judged(em["low"] > 1 and not matched, em["low"] > 1)
    text = (
        f"The EM-like schedule is faster than SGD because values follow responsibilities (chains of {result['length']})"
    )
    return [Claim(text, "2.3 times", ours, word, "holds if no control gains as much, in part if only faster than SGD")]
