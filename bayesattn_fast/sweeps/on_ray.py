"""Engine `ray`: packs as tasks of a Ray cluster, running or started here; results come back to the driver's folder.

Workers need this package and nothing of the driver's disk. A task whose worker or machine dies is run again by Ray.
"""

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from .. import extensions
from .store import Store
from .work import Pack, train_pack

RETRIES = 3


def run_on_ray(
    packs: Iterable[Pack],
    folder: Path,
    *,
    workers: int,
    device: str,
    on_done: Callable[[Pack], None],
    address: str = "",
) -> None:
    """Train the packs as Ray tasks, `workers` at a time; the driver writes the shards.

    address: of a running cluster, or RAY_ADDRESS; without either a local cluster of `workers` CPUs is started and
    ended again. ImportError with a hint where ray is not installed.
    """
    ray = _ray()
    mine = not ray.is_initialized()
    if mine:
        where = address or os.environ.get("RAY_ADDRESS") or None
        local = {} if where else {"num_cpus": workers, "include_dashboard": False}
        ray.init(address=where, log_to_driver=False, logging_level="error", runtime_env=_environment(), **local)
    store = Store(folder)
    try:
        task = ray.remote(num_cpus=1, num_gpus=int(device != "cpu"), max_retries=RETRIES)(_task)
        queue, running = iter(packs), dict[Any, Pack]()
        while True:
            for pack in islice(queue, 2 * workers - len(running)):
                running[task.remote(pack, device)] = pack
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                pack = running.pop(reference)
                try:
                    content = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                store.write(pack, content)
                on_done(pack)
    finally:
        if mine:
            ray.shutdown()


def _task(pack: Pack, device: str) -> bytes | None:
    import torch

    extensions.load()
    torch.set_num_threads(1)
    return train_pack(pack, None, device)


def _environment() -> dict[str, Any]:
    """Of the workers: one thread each, and this package from where the driver has it."""
    root = str(Path(__file__).parents[2])
    own = [str(file.parent) for file in extensions.files()]
    path = os.pathsep.join([root, *own, *filter(None, [os.environ.get("PYTHONPATH")])])
    loaded = {extensions.VARIABLE: os.environ[extensions.VARIABLE]} if own else {}
    return {"env_vars": {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": path, **loaded}}


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("--engine ray needs ray: pip install 'bayesattn-fast[sweeps]'") from None
    return ray
