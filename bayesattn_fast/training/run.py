"""The folder of a run: config.json, checkpoint.safetensors, report.html, figures/; metrics, losses, watch.parquet."""

import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..storage import holds_nothing, read_json, write_json
from .config import RunConfig

CONFIG, CHECKPOINT, METRICS, LOSSES, WATCH, STATE = (
    "config.json",
    "checkpoint.safetensors",
    "metrics.parquet",
    "losses.parquet",
    "watch.parquet",
    "state.json",
)


def environment() -> dict[str, str]:
    """What a reader needs to judge or repeat the numbers: versions and machine."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("bayesattn-fast")
    except PackageNotFoundError:
        own = "source tree"
    return {
        "bayesattn-fast": own,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def is_run(folder: Path) -> bool:
    """Whether `folder` holds a run of this package."""
    return (folder / CONFIG).is_file()


def read_config(folder: Path) -> RunConfig:
    """The run's configuration. ValueError with one sentence where there is none or it is malformed."""
    if not folder.exists():
        raise ValueError(f"there is no run folder {folder}")
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run folder (it has no {CONFIG})")
    return RunConfig.from_dict(read_json(folder / CONFIG))


def read_state(folder: Path) -> dict[str, Any]:
    """Steps done, whether the run is finished, and which seeds diverged at which step."""
    path = folder / STATE
    return read_json(path) if path.exists() else {"step": 0, "finished": False, "diverged": {}}


def default_folder(tunnel: str, model: str) -> Path:
    """runs/TUNNEL-MODEL, with a number behind it where that is taken."""
    base = Path("runs") / f"{tunnel}-{model}"
    number, folder = 2, base
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def prepare(folder: Path, config: RunConfig, *, resume: bool, overwrite: bool, command: str | None) -> None:
    """Make the folder ready for `config`, without touching a run that it does not belong to.

    ValueError where the folder holds something else, or another run's settings under --resume.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file, not a folder")
    if is_run(folder) and resume:
        if difference := config.difference(read_config(folder)):
            raise ValueError(f"--resume: {folder} was started with other settings: {difference}")
        return
    if folder.exists() and not holds_nothing(folder):
        if not is_run(folder):
            raise ValueError(f"--out {folder} is not empty and holds no run; choose another folder")
        if not overwrite:
            raise ValueError(
                f"--out {folder} already holds a run; add --resume or --overwrite, or choose another folder"
            )
        _refuse_if_busy(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"command": command or " ".join(sys.argv), "environment": environment()}
    write_json(folder / CONFIG, {**config.to_dict(), **about})


def _refuse_if_busy(folder: Path) -> None:
    with locked(folder):
        pass


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's lock; ValueError where another process holds it. A killed process leaves none behind."""
    try:
        import fcntl
    except ImportError:  # Windows: no advisory locks of this kind; runs are not guarded there
        yield
        return
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} is in use by another process") from None
        yield
