"""A sweep from start to end: the folder made ready, what is missing planned, and an engine set to work on it."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from ..training.run import locked
from .file import Sweep
from .local import run_local
from .on_ray import run_on_ray
from .plan import Plan, make_plan
from .store import Store
from .work import Pack

ENGINES = ("local", "ray")


def _check_space(folder: Path, plan: Plan) -> None:
    free = shutil.disk_usage(folder).free
    if plan.disk > free:
        raise ValueError(f"--out {folder}: the sweep needs about {plan.disk:,} bytes and its disk has {free:,} free")


def run_sweep(
    sweep: Sweep,
    folder: Path,
    *,
    engine: str = "local",
    workers: int,
    pack: int = 0,
    device: str = "cpu",
    resume: bool = False,
    command: str = "",
    on_plan: Callable[[Plan], None] | None = None,
    on_done: Callable[[Pack], None] | None = None,
) -> Store:
    """Train what the folder lacks and return the folder. workers: processes, or tasks at a time on Ray.

    ValueError where the folder belongs to something else or is in use; OSError where it cannot be written: every
    finished shard stays, and the same call with resume goes on.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}")
    store = Store(folder)
    store.check(sweep, resume=resume)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        store.prepare(sweep, command)
        done = store.done()
        for path in done.damaged:
            print(f"bayesattn: {path} cannot be read; its seeds are trained again", file=sys.stderr)
        store.set_aside(done.damaged)
        plan = make_plan(sweep, done, workers=workers, pack=pack, device=device)
        if on_plan:
            on_plan(plan)
        _check_space(folder, plan)
        work = run_local if engine == "local" else run_on_ray
        work(plan.packs, folder, workers=workers, device=device, on_done=on_done or (lambda pack: None))
    return store
