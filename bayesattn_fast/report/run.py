"""Reading a run folder for a report: config.json, metrics.parquet, losses.parquet; state.json, watch.parquet if any."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage import read_json, read_table
from .results import COLUMNS, Results, Row

LOSS_COLUMNS = ("seed", "step", "loss", "floor", "lr", "gradient_norm")
WATCH_COLUMNS = ("seed", "step", "layer", "head", "advantage_variance", "routing_entropy", "heaviest_key")


@dataclass(frozen=True)
class RunRecord:
    """What a finished or interrupted run left behind."""

    folder: Path
    config: dict[str, Any]
    rows: Sequence[Row]
    losses: Sequence[Row]
    state: dict[str, Any]
    watch: Sequence[Row] = ()
    """Routing of every head over steps, where the run was watched."""

    @property
    def results(self) -> Results:
        """The last evaluation."""
        return Results.of(self.rows)

    @property
    def tunnel(self) -> str:
        return self.config["tunnel"]["name"]

    @property
    def model(self) -> str:
        return self.config["model"]["model"]

    @property
    def title(self) -> str:
        return f"{self.model} on {self.tunnel}"


def read_run(folder: Path | str) -> RunRecord:
    """Read a run folder; ValueError in one sentence where a file is missing, damaged or of another kind."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no run folder {folder}")
    config = read_json(folder / "config.json")
    named = isinstance(config, dict) and all(isinstance(config.get(part), dict) for part in ("tunnel", "model"))
    if not named or "name" not in config["tunnel"] or "model" not in config["model"]:
        raise ValueError(f"{folder / 'config.json'} is not the configuration of a run: it names no tunnel and model")
    rows = read_table(folder / "metrics.parquet", required=COLUMNS)
    losses = read_table(folder / "losses.parquet", required=LOSS_COLUMNS)
    state = read_json(folder / "state.json") if (folder / "state.json").exists() else {}
    watched = (
        read_table(folder / "watch.parquet", required=WATCH_COLUMNS) if (folder / "watch.parquet").exists() else ()
    )
    record = RunRecord(folder, config, rows, losses, state if isinstance(state, dict) else {}, watched)
    try:
        _ = record.results
    except ValueError as error:
        raise ValueError(f"{folder / 'metrics.parquet'}: {error}") from None
    return record
