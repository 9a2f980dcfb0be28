"""Two time scales: over training, when do a head's responsibilities settle, and when do its values?

With α_t and v_t the routing and the values of a head on fixed held-out sequences after t steps, and T the last step:

    routing distance  mean over queries with a choice of ½ Σ_j |α_t,ij − α_T,ij|  (total variation, 0 to 1)
    value distance    ‖v_t − v_T‖ / ‖v_T‖  (Frobenius, over all sequences and positions)

A curve has settled at the first probed step from which on it stays below a threshold. Data and initial weights are
functions of the seeds, so a run need not have kept its past: it is trained again from its configuration and probed on
the way, and what comes out is compared with its checkpoint. Source: "Gradient Dynamics of Attention", arXiv 2512.22473.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.single_head.reference import responsibilities
from ..models import value_rows
from ..models.transformer import Attention
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
    """Steps to look at, closer together at the start; the first and the last are always among them."""
    sequences: int = 16
    """Held-out sequences of each seed."""

    def __post_init__(self) -> None:
        for name, least in (("probes", 3), ("sequences", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")

    def steps(self, last: int) -> list[int]:
        """0, then steps at even ratios up to `last`, each once."""
        ratio = last ** (1 / (self.probes - 2))
        return sorted({0, last, *(min(last, round(ratio**i)) for i in range(self.probes - 1))})


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
    kept, mine = folder / FOLDER / "replay.json", {"of": fingerprint(config), "step": last, **vars(probing)}
    if kept.exists() and (found := read_json(kept)).get("settings") == mine:
        return Replay(read_table(folder / FOLDER / "distances.parquet"), float(found["drift"]))
    batch = config.tunnel.sample(config.seeds, 0, probing.sequences, stream=Stream.HELD_OUT, device=device)
    end, engine = probe(trained, batch), Engine(config, device)
    rows: list[dict[str, Any]] = []
    wanted = set(probing.steps(last))
    for step in range(last + 1):
        if step in wanted:
            rows += _rows(engine, step, probe(engine, batch), end)
            if on_step:
                on_step(step, last)
        if step < last:
            engine.update()
    alive = [seed not in {int(dead) for dead in read_state(folder)["diverged"]} for seed in config.seeds]
    drift = max(_drift(a, b, torch.tensor(alive)) for a, b in zip(engine.parameters, trained.parameters, strict=True))
    rows = [row for row in rows if alive[config.seeds.index(row["seed"])]]
    if not rows:
        raise ValueError(f"every seed of {folder} diverged: there is nothing that settles")
    kept.parent.mkdir(exist_ok=True)
    write_table(kept.parent / "distances.parquet", rows)
    write_json(kept, {"settings": mine, "drift": drift})
    return Replay(rows, drift)


def _drift(replayed: Tensor, kept: Tensor, alive: Tensor) -> float:
    if not bool(alive.any()):
        return 0.0
    ours, theirs = replayed.detach().cpu()[alive], kept.detach().cpu()[alive]
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def probe(engine: Engine, batch: Batch) -> Head:
    """Routing, values and the record of a backward pass on `batch`; the engine trains on as if it had not been."""
    model, seeds = engine.model, len(engine.config.seeds)
    with record_dynamics(model) as record, _projections(engine) as caught:
        losses = seed_losses(model(batch.inputs), batch, engine.config.training.targets)
        losses.sum().backward()
    engine.optimizer.zero_grad(set_to_none=True)
    alphas, values = [], []
    for projected, heads in caught:
        q, k, v = projected.detach().float().unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5)
        alphas.append(responsibilities(q, k, True, q.shape[-1] ** -0.5)[1])
        values.append(v)
    return Head(alphas, values, watch.summarise(record, seeds, batch.entropy[0].numel()))


@contextmanager
def _projections(engine: Engine) -> Iterator[list[tuple[Tensor, int]]]:
    """What every layer's projection puts out, (E, B, N, 3d), with the number of heads, in the order of the layers."""
    caught: list[tuple[Tensor, int]] = []

    def catcher(heads: int) -> Callable[..., None]:
        return lambda module, arguments, output: caught.append((output, heads))

    layers = [module for module in engine.model.modules() if isinstance(module, Attention)]
    hooks = [layer.qkv.register_forward_hook(catcher(layer.heads)) for layer in layers]
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


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
    found = None
    for step, distance in zip(steps, distances, strict=True):
        if not distance < threshold:
            found = None
        elif found is None:
            found = step
    return None if found == steps[-1] else found


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
