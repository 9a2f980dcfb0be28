"""One head trained on one sticky chain, for every seed and schedule; each seed's runs are kept in a shard of their own.

Per seed: a training chain, a fresh held-out chain, the exact filter's answers on it, and initial weights N(0, 0.1²),
all functions of the seed alone. Source of the protocol:
"Gradient Dynamics of Attention", arXiv 2512.22473, and its code.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.initial import normal_weights
from ..ops.single_head import MATRICES, Training, train_single_head
from ..storage import read_json, read_table, write_json, write_table
from ..tunnels.markov import Markov
from ..tunnels.protocol import Stream
from .schedules import METHODS, Schedule, schedules

AUTHORS_SEEDS = (42, 2024, 1337, 7777, 9999)
NATS = 0.6931471805599453
"""Nats in a bit."""
PROGRAMS = 512
"""Seeds × schedules that a GPU trains at once."""


@dataclass(frozen=True)
class Experiment:
    """The sizes of the protocol; a folder of results belongs to one of them."""

    steps: int = 1000
    length: int = 2000
    """Symbols of the chain; one less is predicted."""
    authors_matrix: bool = True
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    ratio: float = 10.0
    methods: tuple[str, ...] = tuple(METHODS)
    record_every: int = 20
    head: int = 10
    values: int = 15
    deviation: float = 0.1

    def __post_init__(self) -> None:
        schedules(self.rates, self.ratio, self.methods)
        for name in ("steps", "record_every", "head", "values"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.length < 3:
            raise ValueError(f"length must be at least 3; got {self.length}")
        if self.steps % self.record_every:
            raise ValueError(
                f"steps must be a multiple of {self.record_every}, the steps between records; got {self.steps}"
            )

    @property
    def tunnel(self) -> Markov:
        return Markov(chain=self.length, authors_matrix=self.authors_matrix)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return schedules(self.rates, self.ratio, self.methods)

    def weights(self, seeds: Sequence[int]) -> list[Tensor]:
        """w_q, w_k, w_v, w_out of the seeds, each with an axis E."""
        tunnel = self.tunnel
        shapes = [(tunnel.dimensions, self.head)] * 2 + [
            (tunnel.dimensions, self.values),
            (self.values, tunnel.symbols),
        ]
        return [normal_weights(seeds, name, s, self.deviation) for name, s in zip(MATRICES, shapes, strict=True)]


def run(
    experiment: Experiment,
    seeds: Sequence[int],
    folder: Path,
    on_seed: Callable[[int, int], None] | None = None,
    device: torch.device | str = "cpu",
    together: int | None = None,
) -> list[dict[str, Any]]:
    """Train what the folder lacks and return the rows of these seeds, one for each seed and schedule.

    together: seeds trained at once, each with all its schedules; on the CPU one, on a GPU as many as keep it busy.
    Every seed is written as soon as it is done, so an interrupted run goes on where it stopped.
    ValueError where the folder holds results of another experiment.
    """
    shards = _prepare(experiment, folder)
    wanted = {s.name: s for s in experiment.schedules}
    if together is None:
        together = 1 if torch.device(device).type == "cpu" else max(1, PROGRAMS // len(wanted))
    rows: list[dict[str, Any]] = []
    for start in range(0, len(seeds), together):
        pack = seeds[start : start + together]
        kept = _trained(experiment, wanted, {seed: shards / f"seed-{seed}.parquet" for seed in pack}, device)
        for done, seed in enumerate(pack, start + 1):
            rows += [row for row in kept[seed] if row["schedule"] in wanted]
            if on_seed:
                on_seed(done, seed)
    return rows


def _trained(
    experiment: Experiment, wanted: Mapping[str, Schedule], paths: Mapping[int, Path], device: torch.device | str
) -> dict[int, list[dict[str, Any]]]:
    """All rows of these seeds: those of their files, and those that were missing there, which are trained and added."""
    kept = {seed: read_table(path) if path.exists() else [] for seed, path in paths.items()}
    lacking: dict[tuple[str, ...], list[int]] = {}
    for seed, rows in kept.items():
        held = {row["schedule"] for row in rows}
        lacking.setdefault(tuple(name for name in wanted if name not in held), []).append(seed)
    for names, group in lacking.items():
        found = train_seeds(experiment, group, [wanted[name] for name in names], device) if names else []
        for seed in group if names else []:
            kept[seed] = [*kept[seed], *(row for row in found if row["seed"] == seed)]
            write_table(paths[seed], kept[seed])
    return kept


def _prepare(experiment: Experiment, folder: Path) -> Path:
    """The folder of the shards, once the folder is known to belong to this experiment."""
    shards, config = folder / "shards", folder / "experiment.json"
    # Rates and methods may be added later: a shard says which schedules it holds.
    mine = {name: value for name, value in dataclasses.asdict(experiment).items() if name not in ("rates", "methods")}
    if config.exists():
        found = read_json(config)
        for name, value in mine.items():
            if found.get(name) != value:
                raise ValueError(
                    f"{folder} holds an experiment with {name} {found.get(name)}, not {value}: choose another folder"
                )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(config, mine)
    shards.mkdir(exist_ok=True)
    return shards


def train_seeds(
    experiment: Experiment, seeds: Sequence[int], chosen: Sequence[Schedule], device: torch.device | str = "cpu"
) -> list[dict[str, Any]]:
    """Train every seed with every schedule in one program: a row for each, all schedules of a seed together."""
    tunnel, count = experiment.tunnel, len(chosen)
    train, fresh = (tunnel.sample(seeds, 0, 1, stream=stream) for stream in (Stream.TRAIN, Stream.HELD_OUT))

    def each(tensor: Tensor) -> Tensor:
        return tensor.to(device).repeat_interleave(count, 0)

    found = train_single_head(
        each(train.inputs),
        each(train.targets),
        *(each(w) for w in experiment.weights(seeds)),
        rates=torch.tensor([s.rates for s in chosen]).repeat(len(seeds), 1),
        steps=experiment.steps,
        record_every=experiment.record_every,
        held_out=(each(fresh.inputs), each(fresh.targets)),
    )
    found = Training._make(t.cpu() if isinstance(t, Tensor) else t for t in found)
    rows = []
    for e, seed in enumerate(seeds):
        exact = _exact(fresh.predictive[e, 0].double(), fresh.targets[e, 0], fresh.entropy[e])
        rows += [_row(seed, s, exact, found, e * count + i) for i, s in enumerate(chosen)]
    return rows


def _exact(told: Tensor, answer: Tensor, entropy: Tensor) -> dict[str, float]:
    """What the exact filter scores on a chain: told (T, C), answer (T,)."""
    return {
        "filter_loss": -float(told.gather(1, answer[:, None]).log().mean()),
        "filter_entropy": float(entropy.double().mean()),
        "filter_accuracy": float((told.argmax(-1) == answer).double().mean()),
    }


def _row(seed: int, chosen: Schedule, exact: dict[str, float], found: Training, i: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "schedule": chosen.name,
        "method": chosen.method,
        "base": chosen.base,
        **{f"rate_{name}": rate for name, rate in zip(MATRICES, chosen.rates, strict=True)},
        "diverged": bool(found.diverged[i]),
        **exact,
        "loss": found.loss[i].tolist(),
        "recorded": list(found.recorded),
        "held_out_loss": found.held_out_loss[i].tolist(),
        "held_out_entropy": (found.held_out_entropy[i] / NATS).tolist(),
        "held_out_accuracy": found.held_out_accuracy[i].tolist(),
        "routing_entropy": (found.routing_entropy[i] / NATS).tolist(),
        "advantage_variance": found.advantage_variance[i].tolist(),
    }
