"""What a worker does: train one pack of seeds of one cell, and return their rows as the bytes of a Parquet file.

A row per seed (and schedule, for a single head): the cell's labels, the seed, at which step it diverged, the final
metrics, and the curves that steps-to-threshold needs. Nothing in it depends on who else was in the pack.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dynamics import Experiment, train_seeds
from ..evaluation.metrics import METRICS
from ..evaluation.summary import MODEL
from ..storage import read_table, write_table
from ..training import Interrupted, RunConfig, fit
from ..training.run import LOSSES
from ..training.run import METRICS as METRICS_FILE
from .file import Cell

CURVES = ("kl", "entropy_abs_error", "entropy_mae", "tvd", "gap", "accuracy")
"""Metrics kept at every evaluation, as lists beside `evaluated`, their steps."""
HEAD_FINALS = ("held_out_loss", "held_out_entropy", "held_out_accuracy", "routing_entropy", "advantage_variance")


@dataclass(frozen=True)
class Pack:
    """Seeds that are trained together: of one cell, or of cells that differ in the learning rate alone."""

    parts: tuple[tuple[Cell, tuple[int, ...]], ...]

    @classmethod
    def of(cls, cell: Cell, seeds: Sequence[int]) -> "Pack":
        return cls(((cell, tuple(seeds)),))

    @property
    def members(self) -> list[tuple[Cell, int]]:
        """Every seed with its cell, in the order in which they are trained."""
        return [(cell, seed) for cell, seeds in self.parts for seed in seeds]

    @property
    def size(self) -> int:
        return sum(len(seeds) for _, seeds in self.parts)

    @property
    def title(self) -> str:
        return "; ".join(cell.name for cell, _ in self.parts)

    @property
    def contents(self) -> dict[str, list[int]]:
        """Seeds by cell key, as the shard says them."""
        return {cell_key(cell): list(seeds) for cell, seeds in self.parts}

    @property
    def name(self) -> str:
        """Stem of the shard: the same for the same work, whichever way the rest is packed."""
        return f"{cell_key(self.parts[0][0])}-{_hash(self.contents)}"

    @property
    def seed_steps(self) -> int:
        return sum(cell.steps * len(seeds) for cell, seeds in self.parts)


def cell_key(cell: Cell) -> str:
    """A short hash of everything that decides the numbers of a cell's seeds."""
    return _hash(cell.to_dict())


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def train_pack(pack: Pack, scratch: Path | None = None, device: str = "cpu") -> bytes | None:
    """The pack's rows as a Parquet file; None where it was stopped on demand.

    scratch: a folder for the pack's checkpoints, from which a stopped pack goes on; a temporary one where it is None.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = scratch or Path(temporary) / "run"
        first = pack.parts[0][0]
        if isinstance(first.config, Experiment):
            rows = [{**first.labels, **row} for row in _head_rows(first.config, pack.parts[0][1], device)]
        else:
            try:
                rows = _model_rows(pack, first.config, folder, device)
            except Interrupted:
                return None
        return as_bytes(rows, pack, Path(temporary))


def as_bytes(rows: Sequence[Mapping[str, Any]], pack: Pack, folder: Path) -> bytes:
    """Rows as a Parquet file that says which cells and seeds it holds."""
    path = folder / "rows.parquet"
    write_table(path, rows, {"parts": json.dumps(pack.contents)})
    return path.read_bytes()


def _model_rows(pack: Pack, config: RunConfig, folder: Path, device: str) -> list[dict[str, Any]]:
    members = pack.members
    rates = tuple(cell.config.training.lr for cell, _ in members) if len(pack.parts) > 1 else ()  # type: ignore[union-attr]
    seeds = tuple(seed for _, seed in members)
    run = fit(RunConfig(config.tunnel, config.model, config.training, seeds, rates), folder, resume=True, device=device)
    curves = _curves(read_table(folder / METRICS_FILE), len(members))
    losses = _losses(read_table(folder / LOSSES), len(members))
    rows = []
    for e, (cell, seed) in enumerate(members):
        finals = {name: float(run.evaluation.per_seed(name)[e]) for name in METRICS}
        rows.append({**cell.labels, "seed": seed, "diverged": run.frozen[e], **finals, **losses[e], **curves[e]})
    return rows


def _curves(rows: Sequence[Mapping[str, Any]], members: int) -> list[dict[str, list[Any]]]:
    """Of every member: the steps of the evaluations and the model's metrics at them, over all positions."""
    mine = [row for row in rows if row["predictor"] == MODEL and row["span"] == "all"]
    found = []
    for of in _by_member(mine, members):
        curves = {f"{name}_curve": [float(row[name]) for row in of] for name in CURVES}
        found.append({"evaluated": [row["step"] for row in of], **curves})
    return found


def _losses(rows: Sequence[Mapping[str, Any]], members: int) -> list[dict[str, list[Any]]]:
    return [
        {"recorded": [row["step"] for row in of], "train_loss_curve": [float(row["loss"]) for row in of]}
        for of in _by_member(rows, members)
    ]


def _by_member(rows: Sequence[Mapping[str, Any]], members: int) -> list[list[Mapping[str, Any]]]:
    """Rows of each member in order of the steps; every step lists the members in the order of the ensemble."""
    ordered = sorted(rows, key=lambda row: row["step"])
    return [ordered[e::members] for e in range(members)]


def _head_rows(experiment: Experiment, seeds: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    for row in train_seeds(experiment, seeds, experiment.schedules, device):
        kept = {name: row[name] for name in ("seed", "schedule", "method", "base")}
        finals = {name: row[name][-1] for name in HEAD_FINALS}
        at_records = [row["loss"][step] for step in row["recorded"]]
        yield {
            **kept,
            "diverged": 0 if row["diverged"] else -1,
            "filter_loss": row["filter_loss"],
            "train_loss": row["loss"][-1],
            **finals,
            "excess_loss": finals["held_out_loss"] - row["filter_loss"],
            "evaluated": row["recorded"],
            "train_loss_curve": at_records,
            "held_out_loss_curve": row["held_out_loss"],
        }
