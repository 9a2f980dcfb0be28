"""Train the cells that are not finished, several at once, each in a process of its own with one thread.

A cell is a run folder: what is finished is passed over, what was interrupted goes on from its checkpoint.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..training import run as folders
from .cells import Cell

Say = Callable[[str], None]


def train_missing(wanted: Sequence[Cell], runs: Path, *, workers: int = 2, say: Say = print) -> None:
    """Bring every cell to its end. ValueError where a folder holds other settings, or a cell's training fails.

    workers: processes at once. A cell that was trained with other seeds or sizes is refused, not replaced.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}")
    waiting = [cell for cell in wanted if not finished(cell, runs)]
    running: dict[Cell, tuple[subprocess.Popen[bytes], float]] = {}
    total, done = len(waiting), 0
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                cell = waiting.pop(0)
                running[cell] = (_start(cell, runs), time.perf_counter())
                say(f"training {cell.name}")
            for cell, (process, since) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[cell]
                if process.returncode:
                    log = cell.folder(runs) / "training.log"
                    raise ValueError(f"training {cell.name} ended with exit code {process.returncode}; see {log}")
                done += 1
                say(f"{cell.name} took {(time.perf_counter() - since) / 60:.1f} minutes; {done} of {total} done")
            time.sleep(0.2)
    finally:
        for process, _ in running.values():
            process.terminate()  # a run answers with a checkpoint
        for process, _ in running.values():
            process.wait()


def finished(cell: Cell, runs: Path) -> bool:
    """Whether the cell is trained to its end. ValueError where its folder holds a run of other settings."""
    folder = cell.folder(runs)
    if not folders.is_run(folder):
        return False
    if difference := cell.config.difference(folders.read_config(folder)):
        raise ValueError(f"{folder} was started with other settings: {difference}; choose another folder")
    return bool(folders.read_state(folder)["finished"])


def _start(cell: Cell, runs: Path) -> subprocess.Popen[bytes]:
    folder, command = cell.folder(runs), f"bayesattn reproduce table2 --scale {cell.scale}"
    folders.prepare(folder, cell.config, resume=True, overwrite=False, command=command)
    words = [sys.executable, "-m", "bayesattn_fast", "resume", str(folder)]
    # Threads that spin while they wait would take the core of the cell beside this one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with (folder / "training.log").open("a", encoding="utf-8") as log:
        return subprocess.Popen(words, env=environment, stdout=log, stderr=log)
