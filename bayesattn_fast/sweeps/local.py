"""Engine `local`: one process per worker with one thread each, on this machine, with nothing to start.

A worker that is killed takes its pack with it and nothing else: the pool is made anew and the pack handed out again.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from .. import extensions
from .store import Store
from .work import Pack, train_pack

RETRIES = 3
"""Times that a pack is handed out before a worker's death counts as the pack's fault."""


class WorkerLost(RuntimeError):
    """Workers died again and again on the same pack."""


def run_local(
    packs: Iterable[Pack], folder: Path, *, workers: int, device: str, on_done: Callable[[Pack], None]
) -> None:
    """Train the packs; each worker writes its own shards. The first error of a pack ends the run, what is done stays.

    WorkerLost where a pack takes its worker with it RETRIES times; KeyboardInterrupt after ^C, once the workers have
    kept their checkpoints.
    """
    left, tries = list(packs), dict[str, int]()
    with _single_threaded():
        while left:
            broken = _run_pool(left, folder, workers, device, on_done)
            for pack in broken:
                tries[pack.name] = tries.get(pack.name, 0) + 1
                if tries[pack.name] >= RETRIES:
                    raise WorkerLost(f"a worker died {RETRIES} times on {pack.title}, seeds from {pack.members[0][1]}")


def _run_pool(left: list[Pack], folder: Path, workers: int, device: str, on_done: Callable[[Pack], None]) -> list[Pack]:
    """Work until all is done or a worker is lost; takes what is done from `left`, returns what was in hand then."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(os.getpid(),))
    queue, running = iter(tuple(left)), dict[Future[bool], Pack]()
    try:
        while True:
            # Few at a time: what is handed out lies pickled in a pipe.
            for pack in islice(queue, 2 * workers - len(running)):
                running[pool.submit(_work, pack, folder, device)] = pack
            if not running:
                pool.shutdown()
                return []
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                if future.result():
                    left.remove(running[future])
                    on_done(running[future])
                del running[future]
    except BrokenProcessPool:
        pool.shutdown(wait=True, cancel_futures=True)
        return list(running.values())[:workers]
    except BaseException:
        _stop(pool)
        raise


def _work(pack: Pack, folder: Path, device: str) -> bool:
    store = Store(folder)
    content = train_pack(pack, store.scratch(pack), device)
    if content is None:
        return False
    store.write(pack, content)
    return True


def _start(driver: int) -> None:
    """What every worker does first: ^C is the driver's to answer, and a worker without its driver goes."""
    import torch

    extensions.load()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(driver,), daemon=True).start()


def _leave_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)


def _stop(pool: ProcessPoolExecutor) -> None:
    """Workers keep a checkpoint of their pack when told to end; who does not within seconds is killed."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + 20
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Environment of the workers: one thread each; a second one waiting for work in a loop slows everybody."""
    mine = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MKL_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in mine}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
