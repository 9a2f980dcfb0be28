"""Geometry of the models of Table 2: keys, attention by depth, value manifolds, clusters, and what settles first.

Keys: those of layer 0 for the bijection's V key tokens without position. Alignment: attention at a recall query on the
queried key and its value, by layer. Manifold and probes: states after the last norm at scored positions, of every
architecture; for transformers also what the heads of the last layer give out. Dissociation: snapshots while the
bijection's transformer trains once more, with the same seeds.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..analysis import (
    adjusted_rand_index,
    attention_mass,
    captured,
    k_means,
    key_orthogonality,
    manifold,
    pattern,
    probe_r2,
    random_orthogonality,
    settling,
    silhouette,
)
from ..evaluation import evaluate
from ..storage import read_json, write_json
from ..training import Engine, RunConfig, load_engine
from ..tunnels.protocol import Stream
from .cells import ARCHITECTURES, Cell, cells
from .claims import Claim, judged, not_run, shown, spread
from .trainer import finished

TUNNELS = ("bijection", "hmm", "recall")
NEEDS = (*((t, a) for t in ("bijection", "hmm") for a in ARCHITECTURES), ("recall", "transformer"))
SEQUENCES = 256
SNAPSHOTS = (0, 25, 50, 100, 150, 200, 300, 400, 500, 700, 1000, 1300, 1600, 2000, 2500)


def geometry(scale: str, seeds: tuple[int, ...], runs: Path) -> dict[str, Any]:
    """Every diagnostic of every finished cell, seed by seed, ready for JSON."""
    done = {(c.tunnel, c.architecture): c for c in cells(scale, seeds) if (c.tunnel, c.architecture) in NEEDS}
    done = {key: cell for key, cell in done.items() if finished(cell, runs)}
    result: dict[str, Any] = {"scale": scale, "seeds": list(seeds), "sequences": SEQUENCES}
    result["states"] = [_states(cell, runs) for (t, _), cell in done.items() if t in ("bijection", "hmm")]
    if cell := done.get(("bijection", "transformer")):
        result["keys"] = _keys(cell, runs)
        result["trajectory"] = _trajectory(cell.config, runs / "bijection-transformer" / "trajectory.json")
    if cell := done.get(("recall", "transformer")):
        result["alignment"] = _alignment(cell, runs)
    return result


def _held_out(config: RunConfig, sequences: int) -> Any:
    return config.tunnel.sample(config.seeds, 0, sequences, stream=Stream.HELD_OUT)


@torch.no_grad()
def _states(cell: Cell, runs: Path) -> dict[str, Any]:
    engine, batch = load_engine(cell.folder(runs)), _held_out(cell.config, SEQUENCES)
    with captured(engine.model) as seen:
        engine.model(batch.inputs)
    assert seen.final is not None
    positions = torch.tensor(cell.config.tunnel.positions)
    outputs = seen.outputs[max(seen.outputs)][:, :, positions] if seen.outputs else None
    rows: dict[str, list[float]] = {}
    for e in range(len(cell.seeds)):
        states, entropy = seen.final[e].flatten(0, 1), batch.entropy[e].flatten()
        posterior = batch.predictive[e].flatten(0, 1)
        found = manifold(states, entropy)
        values = {"first_share": found.first_share, "spearman": found.spearman, "participation": found.participation}
        if outputs is not None:
            found = manifold(outputs[e].flatten(0, 1), entropy)
            values |= {"output_first_share": found.first_share, "output_spearman": found.spearman}
        values |= {"entropy_r2": probe_r2(states, entropy), "posterior_r2": probe_r2(states, posterior)}
        if cell.tunnel == "hmm":
            likeliest = posterior.argmax(-1)
            values["silhouette"] = silhouette(states, likeliest)
            values["rand"] = adjusted_rand_index(k_means(states, posterior.shape[-1]), likeliest)
        for name, value in values.items():
            rows.setdefault(name, []).append(value)
    intervals = {name: spread(values) for name, values in rows.items()}
    return {"tunnel": cell.tunnel, "architecture": cell.architecture, **intervals}


@torch.no_grad()
def _keys(cell: Cell, runs: Path) -> dict[str, Any]:
    config = cell.config
    trained, fresh = load_engine(cell.folder(runs)).model, Engine(config).model
    count, size = config.tunnel.classes, config.model.d_model // config.model.heads

    def per_head(model: Any) -> Tensor:
        x = model.embed.weight[:, :count].unsqueeze(1)  # the key tokens come first
        block = model.blocks[0]
        keys = block.attn.qkv(block.ln1(x)).unflatten(-1, (3, config.model.heads, -1))[:, 0, :, 1]
        return key_orthogonality(keys.transpose(1, 2))  # (E, H)

    after, before = per_head(trained), per_head(fresh)
    return {
        "trained": spread(after.mean(1).tolist()),
        "most_orthogonal_head": spread(after.min(1).values.tolist()),
        "initial": spread(before.mean(1).tolist()),
        "random": random_orthogonality(count, size),
        "keys": count,
        "size": size,
    }


@torch.no_grad()
def _alignment(cell: Cell, runs: Path) -> dict[str, Any]:
    """Share of a recall query's attention on the stored pair that it asks for, by layer: mean and largest of heads."""
    engine, batch = load_engine(cell.folder(runs)), _held_out(cell.config, SEQUENCES)
    with captured(engine.model) as seen:
        engine.model(batch.inputs)
    tunnel: Any = cell.config.tunnel
    positions = torch.tensor(tunnel.positions)
    asked = batch.inputs[:, :, positions]  # (E, B, M) key tokens
    stored = batch.inputs[:, :, 1 : 4 * tunnel.pairs : 4]
    hit = (asked[..., None] == stored[:, :, None]).float().argmax(-1)  # which pair
    relevant = torch.zeros(*asked.shape, batch.inputs.shape[2], dtype=torch.bool)
    for offset in (1, 2, 3):  # key, separator, value
        relevant.scatter_(3, (4 * hit + offset)[..., None], True)
    by_layer = []
    for layer in range(cell.config.model.layers):
        weights = pattern(seen.queries[layer], seen.keys[layer])[..., positions, :]
        mass = attention_mass(weights, relevant[:, :, None]).mean(1)  # (E, H)
        by_layer.append({"mean": spread(mass.mean(1).tolist()), "best head": spread(mass.max(1).values.tolist())})
    chance = float((3 / (positions + 1.0)).mean())
    return {"layers": by_layer, "uniform": chance}


@torch.no_grad()
def _trajectory(config: RunConfig, kept: Path) -> dict[str, Any]:
    """Distance of the attention maps to their final ones, and KL, at snapshots of training; computed once."""
    if kept.exists():
        return dict(read_json(kept))
    steps = [s for s in SNAPSHOTS if s < config.training.steps] + [config.training.steps]
    engine, batch = Engine(config), _held_out(config, 64)
    positions = torch.tensor(config.tunnel.positions)
    maps, errors, before = [], [], None
    for step in steps:
        with torch.enable_grad():
            while engine.step < step:
                engine.update()
        with captured(engine.model) as seen:
            engine.model(batch.inputs)
        layers = range(config.model.layers)
        maps.append(torch.stack([pattern(seen.queries[i], seen.keys[i])[..., positions, :] for i in layers], 1))
        before = evaluate(engine.predictor(), config.tunnel, config.seeds, sequences=512, references_of=before)
        errors.append(before.per_seed("kl").tolist())
    distances = [0.5 * (m - maps[-1]).abs().sum(-1).flatten(1).mean(1) for m in maps]
    result = {"steps": steps, "distance": [d.tolist() for d in distances], "kl": errors}
    write_json(kept, result)
    return result


def settled(result: dict[str, Any]) -> list[Any]:
    """What settles first, for every seed."""
    t = result["trajectory"]
    columns = zip(zip(*t["distance"], strict=True), zip(*t["kl"], strict=True), strict=True)
    return [settling(t["steps"], distances, errors) for distances, errors in columns]


def claims(result: dict[str, Any]) -> list[Claim]:
    """What the papers say of geometry, judged."""
    states = {(s["tunnel"], s["architecture"]): s for s in result["states"]}
    return [
        *_key_claims(result),
        *_alignment_claims(result),
        *_manifold_claims(states),
        *_settling_claims(result),
        *_cluster_claims(states),
    ]


def _key_claims(result: dict[str, Any]) -> list[Claim]:
    text, paper = "Layer-0 keys of hypotheses are more orthogonal than random (mean |cosine|)", "0.052, random 0.082"
    if "keys" not in result:
        return [not_run(text, paper, "needs bijection-transformer")]
    k = result["keys"]
    ours = f"{shown(k['trained'])}; most orthogonal head {shown(k['most_orthogonal_head'])}; random {k['random']:.3f}, "
    ours += f"before training {shown(k['initial'])}"
    above = k["trained"]["high"] if k["trained"]["high"] is not None else k["trained"]["mean"]
    word = judged(above < k["random"], k["most_orthogonal_head"]["mean"] < k["random"])
    return [Claim(text, paper, ours, word, "holds if the interval lies below random, in part if the best head does")]


def _alignment_claims(result: dict[str, Any]) -> list[Claim]:
    text, paper = (
        "Attention on the evidence grows with depth (recall: share on the queried pair)",
        "grows layer by layer",
    )
    if "alignment" not in result:
        return [not_run(text, paper, "needs recall-transformer")]
    a = result["alignment"]
    means = [layer["mean"]["mean"] for layer in a["layers"]]
    best = ", ".join(shown(layer["best head"]) for layer in a["layers"])
    ours = f"by layer {', '.join(shown(x['mean']) for x in a['layers'])}; best head {best}; uniform {a['uniform']:.3f}"
    grows = all(x < y for x, y in pairwise(means))
    return [
        Claim(text, paper, ours, judged(grows, means[-1] > means[0]), "holds if every layer has more than the last")
    ]


def _manifold_claims(states: dict[tuple[str, str], dict[str, Any]]) -> list[Claim]:
    text, paper = "Last attention outputs lie on a line ordered by entropy (bijection)", "first component 84 to 90 %"
    if not (s := states.get(("bijection", "transformer"))):
        return [not_run(text, paper, "needs bijection-transformer")]
    ours = (
        f"attention outputs: share {shown(s['output_first_share'])}, |Spearman| {shown(s['output_spearman'])}; "
        f"states: {shown(s['first_share'])}, {shown(s['spearman'])}; R² of entropy {shown(s['entropy_r2'])}"
    )
    share, rank = s["output_first_share"]["mean"], s["output_spearman"]["mean"]
    word = judged(share > 0.8 and rank > 0.9, share > 0.8 or rank > 0.9)
    rule = "holds for attention outputs above 80 % and a rank correlation of 0.9, in part with one of them"
    return [Claim(text, paper, ours, word, rule)]


def _settling_claims(result: dict[str, Any]) -> list[Claim]:
    text, paper = "Attention settles well before precision does (bijection)", "frame early, precision to the end"
    if "trajectory" not in result:
        return [not_run(text, paper, "needs bijection-transformer")]
    found = settled(result)
    frames = ", ".join(str(s.frame) for s in found)
    left = shown(spread([s.left for s in found]))
    ours = f"within a tenth of its way at steps {frames}; error then, over the final one: {left}"
    word = judged(all(s.left > 2 for s in found), any(s.left > 2 for s in found))
    return [Claim(text, paper, ours, word, "holds if the error still more than halves, in every seed")]


def _cluster_claims(states: dict[tuple[str, str], dict[str, Any]]) -> list[Claim]:
    out = []
    text, paper = "Mamba's last states form one cluster per likeliest hidden state (hmm)", "five clusters, by eye"
    if s := states.get(("hmm", "mamba")):
        ours = f"silhouette {shown(s['silhouette'])}, adjusted Rand index {shown(s['rand'])}"
        word = judged(s["rand"]["mean"] > 0.8, s["rand"]["mean"] > 0.2)
        out.append(Claim(text, paper, ours, word, "holds above an index of 0.8, in part above 0.2"))
    else:
        out.append(not_run(text, paper, "needs hmm-mamba"))
    text, paper = "Mamba's states tell the entropy, the LSTM's do not (hmm, R² of a linear probe)", "0.40 against 0.004"
    pair = [states.get(("hmm", name)) for name in ("mamba", "lstm")]
    if pair[0] and pair[1]:
        mamba, lstm = (s["entropy_r2"]["mean"] for s in pair if s)
        ours = " against ".join(shown(s["entropy_r2"]) for s in pair if s)
        word = judged(mamba > 0.2 and lstm < 0.1, mamba > lstm)
        out.append(Claim(text, paper, ours, word, "holds above 0.2 against below 0.1, in part if Mamba's is higher"))
    else:
        out.append(not_run(text, paper, "needs hmm-mamba, hmm-lstm"))
    return out
