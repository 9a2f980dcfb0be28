"""What a person sees while a run trains: a bar on a terminal, a line every tenth elsewhere. Goes to stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..training import RunConfig
from ..training.engine import StepResult
from ..training.lifecycle import OnStep


def _numbers(result: StepResult) -> str:
    loss, floor = float(result.loss.nanmean()), float(result.floor.mean())
    return f"loss {loss:.4f}  Bayes floor {floor:.4f}  gap {loss - floor:+.4f} nats"


@contextmanager
def training_progress(config: RunConfig, folder: Path, *, quiet: bool) -> Iterator[OnStep | None]:
    """A callback for each step, or None when quiet."""
    if quiet:
        yield None
        return
    yield from _bar(config, folder) if sys.stderr.isatty() else _lines(config, folder)


def _announce(config: RunConfig, folder: Path) -> None:
    """Said at the first step, not before: what is refused has not begun."""
    seeds = len(config.seeds)
    name = f"{config.tunnel.name}, {config.model.model}, {seeds} seed{'s' * (seeds > 1)}"
    print(f"training {name} for {config.training.steps} steps in {folder}", file=sys.stderr, flush=True)


def _bar(config: RunConfig, folder: Path) -> Iterator[OnStep]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    begun = False
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(20),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("train", total=config.training.steps, numbers="", visible=False)

        def on_step(step: int, result: StepResult) -> None:
            nonlocal begun
            if not begun:
                _announce(config, folder)
                begun = True
            every = max(1, config.training.steps // 500)
            if step % every == 0 or step == config.training.steps:
                progress.update(task, completed=step, numbers=_numbers(result), visible=True)

        yield on_step


def _lines(config: RunConfig, folder: Path) -> Iterator[OnStep]:
    started, first = time.perf_counter(), [0]
    every = max(1, config.training.steps // 10)

    def on_step(step: int, result: StepResult) -> None:
        if not first[0]:
            _announce(config, folder)
            first[0] = step
        if step % every == 0:
            rate = (step - first[0] + 1) / (time.perf_counter() - started)
            left = (config.training.steps - step) / rate
            print(
                f"step {step:>6}  {_numbers(result)}  {rate:.1f} steps/s, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    yield on_step
