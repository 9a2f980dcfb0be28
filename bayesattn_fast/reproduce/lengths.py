"""Length generalisation: the models of Table 2 on longer sequences than they were trained on.

HMM: more observations, with the positions beyond the trained ones apart. Recall: more pairs than were ever stored.
Learned positions past the trained length keep their initial values.
"""

from pathlib import Path
from typing import Any

from ..evaluation import Evaluation, evaluate
from ..report.results import CONTEXT_FREE
from ..training import load_engine
from .cells import ARCHITECTURES, cells, longer_tunnels
from .claims import Claim, judged, not_run, shown, spread
from .trainer import finished

TUNNELS = ("hmm", "recall")
NEEDS = tuple((tunnel, architecture) for tunnel in TUNNELS for architecture in ARCHITECTURES)
SEQUENCES = 1024


def length_generalisation(scale: str, seeds: tuple[int, ...], runs: Path) -> dict[str, Any]:
    """Scores of every finished cell at the trained length and at the longer ones, ready for JSON."""
    entries = []
    for cell in cells(scale, seeds):
        if cell.tunnel not in TUNNELS or not finished(cell, runs):
            continue
        engine = load_engine(cell.folder(runs))
        for tunnel in (cell.config.tunnel, *longer_tunnels(cell.tunnel, scale)):
            trained = len(cell.config.tunnel.positions)
            found = evaluate(engine.predictor(tunnel), tunnel, seeds, sequences=SEQUENCES, trained=trained)
            size = tunnel.observations if cell.tunnel == "hmm" else tunnel.pairs  # type: ignore[attr-defined]
            entries.append({"tunnel": cell.tunnel, "architecture": cell.architecture, "size": size, **_scores(found)})
    return {"scale": scale, "seeds": list(seeds), "sequences": SEQUENCES, "lengths": entries}


def _scores(found: Evaluation) -> dict[str, Any]:
    spans = {
        span: {
            metric: spread(found.per_seed(metric, span=span).tolist()) for metric in ("kl", "entropy_mae", "accuracy")
        }
        for span in found.spans
    }
    references = {
        name: {span: float(found.per_seed("kl", name, span).mean()) for span in found.spans}
        for name in found.predictors
        if name != "model"
    }
    by_position = found.predictors["model"].by_position["kl"]
    return {
        "trained": found.trained,
        "spans": spans,
        "references": references,
        "kl_by_position": [spread(column.tolist()) for column in by_position.T],
    }


def claims(result: dict[str, Any]) -> list[Claim]:
    """What the papers say of longer sequences, judged."""
    return [*_hmm_claims(result), *_recall_claims(result)]


def _hmm_claims(result: dict[str, Any]) -> list[Claim]:
    text = "A transformer's filter goes on past the trained length (hmm, entropy MAE in bits of the positions beyond)"
    paper = "0.029 at 50 over all positions; 0.045 to 0.054 beyond 20 in their figure"
    found = [e for e in result["lengths"] if e["tunnel"] == "hmm" and e["architecture"] == "transformer"]
    if not found:
        return [not_run(text, paper, "needs hmm-transformer")]
    short, last = found[0], found[-1]
    inside, beyond = last["spans"]["trained"], last["spans"]["beyond"]
    blind = min(last["references"][name]["beyond"] for name in CONTEXT_FREE)
    ours = (
        f"K = {short['size']} → {last['size']}: {shown(inside['entropy_mae'])} within, "
        f"{shown(beyond['entropy_mae'])} beyond; KL {shown(inside['kl'])}, {shown(beyond['kl'])}; "
        f"no context {blind:.3f}"
    )
    word = judged(beyond["kl"]["mean"] <= 2 * inside["kl"]["mean"], beyond["kl"]["mean"] < blind)
    rule = "holds if KL at most doubles beyond, in part below the level without context"
    return [Claim(text, paper, ours, word, rule)]


def _recall_claims(result: dict[str, Any]) -> list[Claim]:
    text = "The transformer recalls among more pairs than it was trained on (accuracy)"
    found = [e for e in result["lengths"] if e["tunnel"] == "recall" and e["architecture"] == "transformer"]
    if not found:
        return [not_run(text, "not tested", "needs recall-transformer")]
    trained, last = found[0]["size"], found[-1]
    reached = last["spans"]["all"]["accuracy"]
    ours = f"{trained} → {last['size']} pairs: {shown(reached)}"
    word = judged(reached["mean"] >= 0.95, reached["mean"] > 2 / last["size"])
    rule = "holds at 95 %, in part above twice a guess among the stored values"
    return [Claim(text, "not tested", ours, word, rule)]
