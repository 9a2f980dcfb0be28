"""One file holds everything a run needs to go on: weights, optimiser state, history, which seeds are alive.

safetensors with a header that names the format, the step and the run's configuration; written to a temporary name,
synced and renamed, so that a killed run leaves the previous checkpoint whole.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..storage import write_atomically
from .config import RunConfig

FORMAT = "bayesattn-fast checkpoint 1"


@dataclass
class Checkpoint:
    """Tensors by name, and the number of steps done."""

    step: int
    tensors: dict[str, Tensor]


def fingerprint(config: RunConfig) -> str:
    """A hash of everything that decides the numbers."""
    return hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode()).hexdigest()


def save(path: Path, checkpoint: Checkpoint, config: RunConfig) -> None:
    """Write atomically. OSError where the folder cannot be written; the old file is then untouched."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def write(temporary: Path) -> None:
        try:
            save_file(tensors, temporary, metadata=header)
        except SafetensorError as error:  # its word for a full disk
            raise OSError(f"cannot write {path}: {error}") from None

    header = {"format": FORMAT, "step": str(checkpoint.step), "config": fingerprint(config)}
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in checkpoint.tensors.items()}
    write_atomically(path, write)


def load(path: Path, config: RunConfig) -> Checkpoint:
    """ValueError with one sentence where the file is truncated, foreign, or of another configuration."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"{path} is not a checkpoint of this package (format {header.get('format')!r})")
            if header.get("config") != fingerprint(config):
                raise ValueError(f"{path} belongs to a run with other settings than its config.json")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return Checkpoint(int(header["step"]), tensors)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a checkpoint ({error})") from None
