"""The life of a run: start or resume, train, evaluate, checkpoint, stop on demand, finish."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..evaluation import Evaluation, evaluate
from ..storage import read_table, write_json, write_table
from . import checkpoint, watch
from . import run as folders
from .config import RunConfig
from .engine import Engine, StepResult
from .phases import PhaseClock

OnStep = Callable[[int, StepResult], None]


@dataclass(frozen=True)
class Run:
    """A run on disk, and what its last evaluation said."""

    folder: Path
    config: RunConfig
    evaluation: Evaluation
    diverged: dict[int, int]
    """Seed → step at which its loss or gradient stopped being finite; empty where seeds have rates of their own."""
    frozen: tuple[int, ...]
    """The same step for every entry of config.seeds, −1 where all went well."""

    @property
    def report(self) -> Path:
        """The page of the run, written if it is not there yet."""
        from ..report import write_report

        page = self.folder / "report.html"
        return page if page.exists() else write_report(self.folder)


class Interrupted(Exception):
    """The run was stopped on demand after a checkpoint at `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.folder, self.step = folder, step


def fit(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: torch.device | str = "cpu",
    command: str | None = None,
    on_step: OnStep | None = None,
    clock: PhaseClock | None = None,
) -> Run:
    """Train `config` in `folder` and evaluate it.

    With resume, continues from the folder's checkpoint to exactly the metrics of an uninterrupted run; a folder
    without one starts at step 0. clock: times the phases of every step.
    ValueError where the folder belongs to something else; Interrupted after ^C.
    """
    engine = Engine(config, device)  # first: settings that do not fit must not touch the folder
    engine.clock = clock
    folders.prepare(folder, config, resume=resume, overwrite=overwrite, command=command)
    with folders.locked(folder), _stop_on_interrupt() as stopped:
        rows = _restore(engine, folder) if resume and (folder / folders.CHECKPOINT).exists() else []
        training = config.training
        last = None
        if not rows:
            last = _evaluate(engine)
            rows += last.to_rows(step=0)
        while engine.step < training.steps:
            result = engine.update()
            if on_step is not None:
                on_step(engine.step, result)
            if engine.step % training.eval_every == 0 and engine.step < training.steps:
                last = _evaluate(engine, last)
                rows += last.to_rows(step=engine.step)
            if stopped():
                _save(engine, folder, rows)
                raise Interrupted(folder, engine.step)
            if engine.step % training.checkpoint_every == 0 and engine.step < training.steps:
                _save(engine, folder, rows)
        final = _evaluate(engine, last)
        rows = [row for row in rows if row["step"] < engine.step] + final.to_rows(step=engine.step)
        _save(engine, folder, rows)
    return Run(folder, config, final, _diverged(engine), tuple(engine.diverged.tolist()))


def load_engine(folder: Path, device: torch.device | str = "cpu") -> Engine:
    """The trained ensemble of a run folder. ValueError where the folder or its checkpoint is not whole."""
    config = folders.read_config(folder)
    if not (folder / folders.CHECKPOINT).exists():
        raise ValueError(f"{folder} has no {folders.CHECKPOINT}: the run was stopped before its first")
    engine = Engine(config, device)
    engine.restore(checkpoint.load(folder / folders.CHECKPOINT, config))
    return engine


def _evaluate(engine: Engine, before: Evaluation | None = None) -> Evaluation:
    # The truth and the reference predictors do not change during a run; the evaluation before has them.
    config = engine.config
    return evaluate(
        engine.predictor(),
        config.tunnel,
        config.seeds,
        sequences=config.training.eval_sequences,
        device=engine.device,
        diverged=_diverged(engine),
        references_of=before,
    )


def _diverged(engine: Engine) -> dict[int, int]:
    if engine.config.rates:  # one seed may be there with several rates
        return {}
    return {seed: step for seed, step in zip(engine.config.seeds, engine.diverged.tolist(), strict=True) if step >= 0}


def _restore(engine: Engine, folder: Path) -> list[dict[str, Any]]:
    """Continue from the checkpoint; evaluations that came after it will be made again, to the same numbers."""
    engine.restore(checkpoint.load(folder / folders.CHECKPOINT, engine.config))
    rows = read_table(folder / folders.METRICS, required=("step",))
    return [row for row in rows if row["step"] <= engine.step]


def _save(engine: Engine, folder: Path, rows: list[dict[str, Any]]) -> None:
    # The checkpoint comes last: whatever a kill leaves behind, the tables reach at least as far as it does.
    write_table(folder / folders.METRICS, rows)
    write_table(folder / folders.LOSSES, _loss_rows(engine))
    if engine.watched:
        write_table(folder / folders.WATCH, watch.rows(engine.watched_steps, engine.watched, engine.config.seeds))
    checkpoint.save(folder / folders.CHECKPOINT, engine.checkpoint(), engine.config)
    state = {
        "step": engine.step,
        "finished": engine.step >= engine.config.training.steps,
        "diverged": {str(seed): step for seed, step in _diverged(engine).items()},
    }
    write_json(folder / folders.STATE, state)


def _loss_rows(engine: Engine) -> list[dict[str, Any]]:
    history = {key: values.tolist() for key, values in engine.history().items()}
    shares = engine.shares.tolist() or [1.0] * len(engine.config.seeds)
    return [
        {
            "seed": seed,
            "step": step,
            "loss": history["loss"][i][e],
            "floor": history["floor"][i][e],
            "gradient_norm": history["gradient_norm"][i][e],
            "lr": history["lr"][i] * shares[e],
        }
        for i, step in enumerate(engine.recorded_steps)
        for e, seed in enumerate(engine.config.seeds)
    ]


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn the first ^C into a question the loop asks between steps; a second one interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(signum: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
