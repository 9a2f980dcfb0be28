"""Two time scales: over training, when do a head's responsibilities settle, and when do its values?

With α_t and v_t the routing and the values of a head on fixed held-out sequences after t steps, and T the last step:

    routing distance  mean over queries with a choice of ½ Σ_j |α_t,ij − α_T,ij|  (total variation, 0 to 1)
    value distance    ‖v_t − v_T‖ / ‖v_T‖  (Frobenius, over all sequences and positions)

A curve has settled at the first probed step from which on it stays below a threshold. Data and initial weights are
functions of the seeds, so a run need not have kept its past: it is trained again from its configuration and probed on
the way, and what comes out is compared with its checkpoint. Source: "Gradient Dynamics of Attention", arXiv 2512.22473.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..analysis import captured, pattern
from ..analysis.settling import settled_from
from ..models import value_rows
from ..ops.attention_record import record_dynamics
from ..storage import read_json, read_table, write_json, write_table
from ..training import Engine, watch
from ..training.checkpoint import fingerprint
from ..training.engine import seed_losses
from ..training.lifecycle import load_engine
from ..training.run import read_state
from ..tunnels.protocol import Batch, Stream

FOLDER = "two-timescale"
DISTANCES = ("routing_distance", "value_distance")


@dataclass(frozen=True)
class Probing:
    """How a run is probed."""

    probes: int = 40
    """Steps to look at: half of them at even distances, half closer together at the start; the first and the last are
    always among them."""
    sequences: int = 16
    """Held-out sequences of each seed."""

    def __post_init__(self) -> None:
        for name, least in (("probes", 3), ("sequences", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")

    def steps(self, last: int) -> list[int]:
        """0, `last`, and steps at even distances and at even ratios between them, each once."""
        even = self.probes // 2
        ratio = last ** (1 / max(1, self.probes - even - 2))
        early = (round(ratio**i) for i in range(self.probes - even - 1))
        return sorted({0, last, *(round(last * i / even) for i in range(even)), *(min(last, step) for step in early)})


class Head(NamedTuple):
    """What the attention of every layer does on the probe."""

    alpha: list[Tensor]
    """Per layer (E, B, H, N, N)."""
    values: list[Tensor]
    """Per layer (E, B, H, N, d/H)."""
    watched: Tensor
    """(E, L, H, Q): watch.QUANTITIES."""


class Replay(NamedTuple):
    """The curves of a run."""

    rows: list[dict[str, Any]]
    """seed, step, layer, head, the two distances and watch.QUANTITIES."""
    drift: float
    """Largest difference between a weight of the replay and of the checkpoint, over the largest weight there."""


def replay(
    folder: Path,
    probing: Probing,
    device: torch.device | str = "cpu",
    on_step: Callable[[int, int], None] | None = None,
) -> Replay:
    """Train the run of `folder` again as far as its checkpoint and probe it; kept in folder/two-timescale.

    Seeds that diverged are left out. ValueError where the run is not whole, has no attention, or stands at step 0.
    """
    trained = load_engine(folder, device)
    config, last = trained.config, trained.step
    if not value_rows(trained.model):
        raise ValueError(f"{folder} holds a {config.model.model}; two-timescale takes runs of transformers")
    if last < 2:
        raise ValueError(f"{folder} stands at step {last}; two-timescale takes runs of at least 2 steps")
    alive = [seed not in {int(dead) for dead in read_state(folder)["diverged"]} for seed in config.seeds]
    if not any(alive):
        raise ValueError(f"every seed of {folder} diverged: there is nothing that settles")
    wanted = probing.steps(last)
    kept = folder / FOLDER / "replay.json"
    mine = {"of": fingerprint(config), "steps": wanted, "sequences": probing.sequences}
    if kept.exists() and (found := read_json(kept)).get("settings") == mine:
        return Replay(read_table(folder / FOLDER / "distances.parquet"), float(found["drift"]))
    batch = config.tunnel.sample(config.seeds, 0, probing.sequences, stream=Stream.HELD_OUT, device=device)
    end, engine = probe(trained, batch), Engine(config, device)
    rows: list[dict[str, Any]] = []
    for step in range(last + 1):
        if step in wanted:
            rows += _rows(engine, step, probe(engine, batch), end)
            if on_step:
                on_step(step, last)
        if step < last:
            engine.update()
    drift = max(_drift(a, b, torch.tensor(alive)) for a, b in zip(engine.parameters, trained.parameters, strict=True))
    rows = [row for row in rows if alive[config.seeds.index(row["seed"])]]
    kept.parent.mkdir(exist_ok=True)
    write_table(kept.parent / "distances.parquet", rows)
    write_json(kept, {"settings": mine, "drift": drift})
    return Replay(rows, drift)


def _drift(replayed: Tensor, kept: Tensor, alive: Tensor) -> float:
    ours, theirs = replayed.detach().cpu()[alive], kept.detach().cpu()[alive]
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def probe(engine: Engine, batch: Batch) -> Head:
    """Routing, values and the record of a backward pass on `batch`; the engine trains on as if it had not been."""
    with record_dynamics(engine.model) as record, captured(engine.model) as seen:
        losses = seed_losses(engine.model(batch.inputs), batch, engine.config.training.targets)
        losses.sum().backward()
    engine.optimizer.zero_grad(set_to_none=True)
    layers = sorted(seen.queries)
    alphas = [pattern(seen.queries[layer].float(), seen.keys[layer].float()) for layer in layers]
    watched = watch.summarise(record, len(engine.config.seeds), batch.entropy[0].numel())
    return Head(alphas, [seen.values[layer].float() for layer in layers], watched)


def routing_distance(alpha: Tensor, end: Tensor) -> Tensor:
    """(E, H): mean total variation over sequences and queries. The first query sees one key and has no choice."""
    if alpha.shape[-1] == 1:
        return alpha.new_zeros(alpha.shape[0], alpha.shape[2])
    return 0.5 * (alpha - end)[..., 1:, :].abs().sum(-1).mean((1, 3))


def value_distance(values: Tensor, end: Tensor) -> Tensor:
    """(E, H): ‖v − v_T‖ / ‖v_T‖ over sequences, positions and components."""
    apart, size = ((x**2).sum((1, 3, 4)).sqrt() for x in (values - end, end))
    return apart / size


def _rows(engine: Engine, step: int, now: Head, end: Head) -> Iterator[dict[str, Any]]:
    routing = [routing_distance(a, b).tolist() for a, b in zip(now.alpha, end.alpha, strict=True)]
    values = [value_distance(a, b).tolist() for a, b in zip(now.values, end.values, strict=True)]
    for row in watch.rows([step], [now.watched], engine.config.seeds):
        e, layer, head = engine.config.seeds.index(row["seed"]), row["layer"], row["head"]
        distances = (routing[layer][e][head], values[layer][e][head])
        yield {**row, **dict(zip(DISTANCES, distances, strict=True))}


def settled_at(steps: Sequence[int], distances: Sequence[float], threshold: float) -> int | None:
    """The first step from which on every distance is below `threshold`; None where only the last one is, which is 0
    by definition and says nothing."""
    found = settled_from(distances, threshold)
    return None if found is None or found == len(steps) - 1 else steps[found]


class Settled(NamedTuple):
    """One head of one seed; None where it moved until the end."""

    seed: int
    layer: int
    head: int
    routing: int | None
    values: int | None

    @property
    def first(self) -> str:
        """Which came earlier: "routing", "values", "together" (at the same probe), or "neither" settled."""
        if self.routing == self.values:
            return "neither" if self.routing is None else "together"
        if self.routing is None or (self.values is not None and self.values < self.routing):
            return "values"
        return "routing"


def settling(rows: Sequence[dict[str, Any]], threshold: float, relative: bool = False) -> list[Settled]:
    """When each head of each seed settled; relative: the threshold is a share of the distance at step 0."""
    curves: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        curves.setdefault((row["layer"], row["head"], row["seed"]), []).append(row)
    found = []
    for (layer, head, seed), curve in sorted(curves.items()):
        steps, at = [row["step"] for row in curve], []
        for name in DISTANCES:
            distances = [row[name] for row in curve]
            at.append(settled_at(steps, distances, threshold * (distances[0] if relative else 1.0)))
        found.append(Settled(seed, layer, head, at[0], at[1]))
    return found
