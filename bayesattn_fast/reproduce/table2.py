"""Table 2: every architecture on every tunnel, beside the papers' numbers and predictors that were not trained.

A primitive counts as realised by a rule about the KL from the exact posterior, in every seed:
    yes      at most 5 % of what the best predictor that reads no context has; on the HMM also below the exact filter
             that sees the last three observations only, which needs no belief that is carried on
    partly   at most half of it
    no       otherwise
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..evaluation.summary import MODEL
from ..report.results import CONTEXT_FREE, Results
from ..report.run import read_run
from ..report.tables import summary_json
from ..storage import read_json, write_json
from ..training import Engine, RunConfig
from .cells import Cell, cells, parameter_count
from .claims import Claim, judged, not_run, shown
from .paper import ACCURACY, published
from .trainer import finished

REALISED, PARTLY = 0.05, 0.5
NO_MEMORY = "window 3"
"""The HMM's reference predictor that a model which carries a belief has to beat."""
SHOWN = ("kl", "entropy_abs_error", "entropy_mae", "tvd", "accuracy")
PRIMITIVES = {"bijection": "accumulation", "hmm": "transport", "recall": "binding"}


def table2(scale: str, seeds: tuple[int, ...], runs: Path) -> dict[str, Any]:
    """Scores of all finished cells, ready for JSON."""
    found = [_entry(cell, runs) for cell in cells(scale, seeds) if finished(cell, runs)]
    return {"scale": scale, "seeds": list(seeds), "cells": found}


def _entry(cell: Cell, runs: Path) -> dict[str, Any]:
    record = read_run(cell.folder(runs))
    config = cell.config
    return {
        "tunnel": cell.tunnel,
        "architecture": cell.architecture,
        "layers": config.model.layers,
        "d_model": config.model.d_model,
        "parameters": parameter_count(config.model, config.tunnel),
        "steps": config.training.steps,
        "tokens_per_second": _speed(config, cell.folder(runs) / "speed.json"),
        "published": published(cell.tunnel, cell.architecture),
        "primitive": realised(record.results, cell.tunnel),
        "curves": _curves(record.rows),
        **summary_json(record.results),
    }


def realised(results: Results, tunnel: str) -> str:
    """ "yes", "partly" or "no", by the rule at the top of this file."""
    seeds = [seed for seed in results.seeds if seed not in results.diverged]
    model = results.per_seed("kl", MODEL)
    blind = {seed: min(results.per_seed("kl", name)[seed] for name in CONTEXT_FREE) for seed in seeds}
    if not seeds or any(not model[seed] <= PARTLY * blind[seed] for seed in seeds):
        return "no"
    whole = all(model[seed] <= REALISED * blind[seed] for seed in seeds)
    if tunnel == "hmm":
        window = results.per_seed("kl", NO_MEMORY)
        whole = whole and all(model[seed] < window[seed] for seed in seeds)
    return "yes" if whole else "partly"


def _curves(rows: Sequence[Any]) -> dict[str, Any]:
    """KL over training steps and over positions: mean and 95 % interval over seeds."""
    results = Results.of(rows)
    over_steps = [Results.of(rows, step=step).summary("kl") for step in results.steps]
    over_positions = results.mean_curve("kl")
    return {
        "steps": list(results.steps),
        "kl_by_step": [vars(m) for m in over_steps],
        "kl_by_position": [vars(m) for m in over_positions],
        "references_by_position": {
            name: [m.mean for m in results.mean_curve("kl", name)] for name in results.comparable
        },
    }


def _speed(config: RunConfig, kept: Path, steps: int = 5) -> float:
    """Input positions trained per second, all seeds together: the median of a few steps, measured once."""
    if kept.exists():
        return float(read_json(kept)["tokens_per_second"])
    engine = Engine(config)
    engine.update()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.update()
        seconds.append(time.perf_counter() - start)
    tokens = len(config.seeds) * config.training.batch * config.tunnel.length
    rate = tokens / sorted(seconds)[steps // 2]
    write_json(kept, {"tokens_per_second": rate, "threads": torch.get_num_threads()})
    return rate


def claims(result: dict[str, Any]) -> list[Claim]:
    """What the papers say of Table 2, judged."""
    found = {(c["tunnel"], c["architecture"]): c for c in result["cells"]}
    makers = (_bijection, _recall, _hmm_blind, _hmm_lstm, _hmm_transport, _hmm_mamba, _mlp, _primitives)
    return [claim for make in makers for claim in make(found)]


Found = dict[tuple[str, str], dict[str, Any]]


def _interval(cell: dict[str, Any], metric: str) -> dict[str, Any]:
    return {key: cell["metrics"][metric][key] for key in ("mean", "low", "high", "seeds")}


def _missing(found: Found, *keys: tuple[str, str]) -> str:
    return ", ".join("-".join(key) for key in keys if key not in found)


def _bijection(found: Found) -> list[Claim]:
    claims = []
    for architecture in ("transformer", "mamba", "lstm"):
        key = "bijection", architecture
        text = f"The {architecture} eliminates hypotheses as Bayes does (bijection, entropy MAE in bits)"
        if key not in found:
            claims.append(not_run(text, published(*key), f"needs {_missing(found, key)}"))
            continue
        mae = found[key]["metrics"]["entropy_mae"]["mean"]
        rule = "holds at 0.03 bits or less, in part at 0.1"
        ours = shown(_interval(found[key], "entropy_mae"))
        claims.append(Claim(text, published(*key), ours, judged(mae <= 0.03, mae <= 0.1), rule))
    return claims


def _recall(found: Found) -> list[Claim]:
    claims = []
    expected = {"transformer": True, "mamba": True, "lstm": False}
    for architecture, learns in expected.items():
        key = "recall", architecture
        text = f"The {architecture} {'recalls' if learns else 'cannot recall'} what was stored (accuracy)"
        if key not in found:
            claims.append(not_run(text, ACCURACY[key], f"needs {_missing(found, key)}"))
            continue
        cell = found[key]
        reached, chance = cell["metrics"]["accuracy"]["mean"], _stored_level(cell)
        if learns:
            limit = 0.99 if architecture == "transformer" else 0.95
            word = judged(reached >= limit, reached > 2 * chance)
            rule = f"holds at {limit:.0%} or more, in part above twice {chance:.3f}, a guess among the stored values"
        else:
            word, rule = (
                judged(reached <= 2 * chance, reached < 0.95),
                f"holds below twice {chance:.3f}, in part to 95 %",
            )
        claims.append(Claim(text, ACCURACY[key], shown(_interval(cell, "accuracy")), word, rule))
    return claims


def _stored_level(cell: dict[str, Any]) -> float:
    return float(cell["references"]["uniform over stored values"]["accuracy"])


def _hmm_blind(found: Found) -> list[Claim]:
    key = "hmm", "transformer"
    text = "The transformer filters an HMM: better than any predictor that reads no context (KL in bits)"
    if key not in found:
        return [not_run(text, published(*key), f"needs {_missing(found, key)}")]
    cell = found[key]
    level = min(cell["references"][name]["kl"] for name in CONTEXT_FREE)
    worst = max(cell["metrics"]["kl"]["per_seed"].values())
    ours = f"{shown(_interval(cell, 'kl'))}; reads no context: {level:.3f}"
    return [Claim(text, f"entropy MAE {published(*key)}", ours, judged(worst < level), "holds if so in every seed")]


def _hmm_lstm(found: Found) -> list[Claim]:
    keys = ("hmm", "lstm"), ("hmm", "transformer")
    text = "The LSTM fails to filter an HMM"
    paper = f"entropy MAE {published(*keys[0])}, the level of the uniform predictor"
    if missing := _missing(found, *keys):
        return [not_run(text, paper, f"needs {missing}")]
    lstm, transformer = (found[key] for key in keys)
    level = min(lstm["references"][name]["kl"] for name in CONTEXT_FREE)
    mean = lstm["metrics"]["kl"]["mean"]
    ours = (
        f"KL {shown(_interval(lstm, 'kl'))}; transformer {shown(_interval(transformer, 'kl'))}; no context {level:.3f}"
    )
    rule = "holds within 5 % of the level without context, in part if it stays above half of it"
    return [Claim(text, paper, ours, judged(mean > 0.95 * level, mean > 0.5 * level), rule)]


def _hmm_transport(found: Found) -> list[Claim]:
    key = "hmm", "transformer"
    text = "The transformer carries a belief on (HMM: closer than the exact filter of the last 3 observations)"
    paper = "entropy MAE 0.049; that filter has 0.015"
    if key not in found:
        return [not_run(text, paper, f"needs {_missing(found, key)}")]
    cell = found[key]
    levels = {name: cell["references"][name]["kl"] for name in ("window 1", "window 2", "window 3")}
    mean = cell["metrics"]["kl"]["mean"]
    told = ", ".join(f"{name} {value:.3g}" for name, value in levels.items())
    word = judged(mean < levels["window 3"], mean < levels["window 1"])
    ours = f"KL {shown(_interval(cell, 'kl'))}; {told}"
    return [Claim(text, paper, ours, word, "in part if closer than the filter of one observation")]


def _hmm_mamba(found: Found) -> list[Claim]:
    keys = ("hmm", "mamba"), ("hmm", "transformer")
    text, paper = "Mamba filters an HMM better than the transformer", "entropy MAE 0.024 against 0.049"
    if missing := _missing(found, *keys):
        return [not_run(text, paper, f"needs {missing}")]
    mamba, transformer = (found[key]["metrics"]["kl"]["per_seed"] for key in keys)
    better = [mamba[seed] < transformer[seed] for seed in mamba]
    mean = [sum(x.values()) / len(x) for x in (mamba, transformer)]
    ours = "KL " + " against ".join(shown(_interval(found[key], "kl")) for key in keys)
    return [
        Claim(
            text, paper, ours, judged(all(better), mean[0] < mean[1]), "holds if so in every seed, in part on average"
        )
    ]


def _mlp(found: Found) -> list[Claim]:
    claims = []
    for tunnel in ("bijection", "recall", "hmm"):
        key = tunnel, "mlp"
        text = f"The MLP stays at the exact level of the best position-only predictor ({tunnel}, KL in bits)"
        if key not in found:
            claims.append(not_run(text, published(*key), f"needs {_missing(found, key)}"))
            continue
        level = found[key]["references"]["best position-only"]["kl"]
        mean = found[key]["metrics"]["kl"]["mean"]
        off = abs(mean - level) / level
        word, rule = judged(off <= 0.02, off <= 0.1), "holds within 2 %, in part within 10 %"
        ours = f"{shown(_interval(found[key], 'kl'))}; level {level:.4g}"
        claims.append(Claim(text, published(*key), ours, word, rule))
    return claims


def _primitives(found: Found) -> list[Claim]:
    claims = []
    expected = {"transformer": "3 of 3", "mamba": "2 of 3", "lstm": "1 of 3", "mlp": "0 of 3"}
    for architecture, count in expected.items():
        keys = [(tunnel, architecture) for tunnel in PRIMITIVES]
        text = f"Primitives that the {architecture} realises"
        if missing := _missing(found, *keys):
            claims.append(not_run(text, count, f"needs {missing}"))
            continue
        words = {PRIMITIVES[tunnel]: found[tunnel, architecture]["primitive"] for tunnel in PRIMITIVES}
        ours = f"{list(words.values()).count('yes')} of 3: " + ", ".join(f"{k} {v}" for k, v in words.items())
        low = sum(v == "yes" for v in words.values())
        high = sum(v != "no" for v in words.values())
        wanted = int(count[0])
        claims.append(Claim(text, count, ours, judged(low == wanted, low <= wanted <= high), "by the rule below"))
    return claims
