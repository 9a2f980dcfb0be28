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
    """Seeds of one cell that are trained together."""

    cell: Cell
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Stem of the shard: the same for the same work, whichever way the rest is packed."""
        return f"{cell_key(self.cell)}-{_hash(list(self.seeds))}"

    @property
    def seed_steps(self) -> int:
        return self.cell.steps * len(self.seeds)


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
        if isinstance(pack.cell.config, Experiment):
            rows = list(_head_rows(pack.cell.config, pack.seeds, device))
        else:
            try:
                rows = _model_rows(pack, pack.cell.config, folder, device)
            except Interrupted:
                return None
        return as_bytes([{**pack.cell.labels, **row} for row in rows], pack, Path(temporary))


def as_bytes(rows: Sequence[Mapping[str, Any]], pack: Pack, folder: Path) -> bytes:
    """Rows as a Parquet file that says which cell and seeds it holds."""
    path = folder / "rows.parquet"
    write_table(path, rows, {"cell": cell_key(pack.cell), "seeds": json.dumps(list(pack.seeds))})
    return path.read_bytes()


def _model_rows(pack: Pack, config: RunConfig, folder: Path, device: str) -> list[dict[str, Any]]:
    run = fit(RunConfig(config.tunnel, config.model, config.training, pack.seeds), folder, resume=True, device=device)
    curves, losses = _curves(read_table(folder / METRICS_FILE)), _losses(read_table(folder / LOSSES))
    rows = []
    for e, seed in enumerate(pack.seeds):
        finals = {name: float(run.evaluation.per_seed(name)[e]) for name in METRICS}
        rows.append({"seed": seed, "diverged": run.diverged.get(seed, -1), **finals, **losses[seed], **curves[seed]})
    return rows


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, list[Any]]]:
    """By seed: the steps of the evaluations and the model's metrics at them, over all positions."""
    mine = [row for row in rows if row["predictor"] == MODEL and row["span"] == "all"]
    found: dict[int, dict[str, list[Any]]] = {}
    for row in sorted(mine, key=lambda row: row["step"]):
        of = found.setdefault(row["seed"], {"evaluated": [], **{f"{name}_curve": [] for name in CURVES}})
        of["evaluated"].append(row["step"])
        for name in CURVES:
            of[f"{name}_curve"].append(float(row[name]))
    return found


def _losses(rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, list[Any]]]:
    found: dict[int, dict[str, list[Any]]] = {}
    for row in rows:
        of = found.setdefault(row["seed"], {"recorded": [], "train_loss_curve": []})
        of["recorded"].append(row["step"])
        of["train_loss_curve"].append(float(row["loss"]))
    return found


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
