"""Ablations of the trained transformers: each head, each layer, and attention off in the top layers.

Heads are zeroed before the output map, layers replaced by the identity, without training again. The hypothesis-frame
head is the layer-0 head whose loss costs most.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..analysis import ablated
from ..evaluation import Evaluation, evaluate
from ..training import load_engine
from .cells import cells
from .claims import Claim, judged, not_run, shown, spread
from .trainer import finished

TUNNELS = ("bijection", "recall", "hmm")
NEEDS = tuple((tunnel, "transformer") for tunnel in TUNNELS)
SEQUENCES = 1024


def ablations(scale: str, seeds: tuple[int, ...], runs: Path) -> dict[str, Any]:
    """KL of every transformer whole and with each part off, seed by seed, ready for JSON."""
    entries = []
    for cell in cells(scale, seeds):
        if cell.architecture != "transformer" or cell.tunnel not in TUNNELS or not finished(cell, runs):
            continue
        engine, shape = load_engine(cell.folder(runs)), cell.config.model
        parts: list[tuple[str, dict[str, Any]]] = [("whole", {})]
        parts += [(f"head {i}.{h}", {"heads": [(i, h)]}) for i in range(shape.layers) for h in range(shape.heads)]
        parts += [(f"layer {i}", {"layers": [i]}) for i in range(shape.layers)]
        parts += [(f"attention ≥ {i}", {"attention": range(i, shape.layers)}) for i in range(shape.layers - 1, 0, -1)]
        before: Evaluation | None = None
        for name, what in parts:
            with ablated(engine.model, **what) if what else nullcontext():
                before = evaluate(
                    engine.predictor(), cell.config.tunnel, seeds, sequences=SEQUENCES, references_of=before
                )
            entries.append({"tunnel": cell.tunnel, "part": name, "kl": before.per_seed("kl").tolist()})
    return {"scale": scale, "seeds": list(seeds), "sequences": SEQUENCES, "parts": entries}


def by_part(result: dict[str, Any], tunnel: str) -> dict[str, list[float]]:
    """Part → KL of every seed."""
    return {e["part"]: e["kl"] for e in result["parts"] if e["tunnel"] == tunnel}


def claims(result: dict[str, Any]) -> list[Claim]:
    """What the papers say of ablations, judged."""
    out = []
    for tunnel in TUNNELS:
        parts = by_part(result, tunnel)
        text = f"Removing any layer raises the error more than 10 times ({tunnel})"
        if not parts:
            out.append(not_run(text, "> 10 times", f"needs {tunnel}-transformer"))
            continue
        whole = parts["whole"]
        ratios = {k: [a / b for a, b in zip(v, whole, strict=True)] for k, v in parts.items() if k.startswith("layer")}
        ours = "KL × " + ", ".join(f"{shown(spread(v))} ({k})" for k, v in ratios.items())
        least = [min(v) for v in ratios.values()]
        word = judged(min(least) > 10, max(least) > 10)
        out.append(Claim(text, "> 10 times", ours, word, "holds if so in every seed, in part for some layer"))
    return [*out, *_frame_claim(by_part(result, "bijection"))]


def _frame_claim(parts: dict[str, list[float]]) -> list[Claim]:
    """The hypothesis-frame head: does one head of layer 0 cost more than twice the next?"""
    text = "One layer-0 head stands out: the hypothesis frame (bijection)"
    if not parts:
        return [not_run(text, "one head stands out", "needs bijection-transformer")]
    heads = {name: values for name, values in parts.items() if name.startswith("head 0.")}
    costliest, ratios = [], []
    for seed, whole in enumerate(parts["whole"]):
        rises = sorted(((values[seed] - whole, name) for name, values in heads.items()), reverse=True)
        costliest.append(rises[0][1])
        ratios.append(rises[0][0] / max(rises[1][0], 1e-9))
    ours = f"costliest {', '.join(costliest)} by seed; its rise over the next one's: {shown(spread(ratios))}"
    word = judged(min(ratios) > 2, max(ratios) > 2)
    return [Claim(text, "one head stands out", ours, word, "holds above twice the next in every seed")]
