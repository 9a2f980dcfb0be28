"""Which seeds go together into a pack, and what the whole will cost, from a few measured steps of every shape.

On a GPU a pack is as large as memory allows: there a step of many seeds costs little more than a step of one. On a CPU
one process per core with one thread each is fastest and packing gains little, so packs are only large enough that
writing a shard does not count, and small enough that all workers stay busy and little is lost to a kill. Cells that
differ in the learning rate alone share packs.
"""

import dataclasses
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..dynamics import Experiment, train_seeds
from ..training import Engine, RunConfig
from .file import Cell, Sweep
from .store import Done
from .work import CURVES, Pack, cell_key

MODEL_SEEDS, HEAD_SEEDS = 32, 512
"""Most seeds in a pack on a CPU."""
PACKS_PER_WORKER = 4
MEMORY_SHARE = 0.5
"""Share of the memory that all workers together may plan with; the rest is for activations not counted, and others."""
SHARD_BYTES, ROW_BYTES, NUMBER_BYTES = 20_000, 120, 8
"""About what takes disk: a file, a row in it, a number of the row's curves."""
HEAD_SAMPLE = 32
"""Seeds of a single head that are timed together: its trainer works on many at once."""


@dataclass(frozen=True)
class Cost:
    """Of one seed of a cell, measured."""

    bytes: int
    """Weights, gradients, optimiser state and what the forward pass keeps for the backward pass."""
    seconds: float
    """For all its steps, alone, on one thread."""


@dataclass(frozen=True)
class Plan:
    """Packs in the order in which they are handed out, and what they are expected to take."""

    packs: tuple[Pack, ...]
    workers: int
    costs: Mapping[str, Cost]

    @property
    def seeds(self) -> int:
        return sum(pack.size for pack in self.packs)

    @property
    def seed_steps(self) -> int:
        return sum(pack.seed_steps for pack in self.packs)

    @property
    def seconds(self) -> float:
        """Expected, with all workers busy."""
        parts = (part for pack in self.packs for part in pack.parts)
        total = sum(self.costs[cell_key(cell)].seconds * len(seeds) for cell, seeds in parts)
        return total / self.workers

    @property
    def disk(self) -> int:
        """Bytes, roughly."""
        rows = sum(len(seeds) * _row_bytes(cell) for pack in self.packs for cell, seeds in pack.parts)
        return SHARD_BYTES * len(self.packs) + rows


def make_plan(sweep: Sweep, done: Done, *, workers: int, pack: int = 0, device: str = "cpu") -> Plan:
    """Packs of what is not done yet. pack: seeds in each, 0 to choose it from measured memory.

    ValueError where pack is negative or one seed does not fit into memory.
    """
    if pack < 0:
        raise ValueError(f"pack must be 0 (chosen from memory) or positive; got {pack}")
    costs: dict[str, Cost] = {}
    shapes: dict[str, list[tuple[Cell, int]]] = {}
    for cell in sweep.cells:
        known = done.seeds.get(cell_key(cell), ())
        if missing := [(cell, seed) for seed in sweep.seeds if seed not in known]:
            shapes.setdefault(shape_of(cell), []).extend(missing)
    jobs = sum(map(len, shapes.values()))
    packs: list[Pack] = []
    for members in shapes.values():
        first, seed = members[0]
        cost = measure(first, seed, device)
        costs |= {cell_key(cell): cost for cell in {id(cell): cell for cell, _ in members}.values()}
        size = pack or _pack_size(first, cost, jobs, workers, device)
        packs += [_joined(members[at : at + size]) for at in range(0, len(members), size)]
    return Plan(tuple(packs), workers, costs)


def _joined(members: Sequence[tuple[Cell, int]]) -> Pack:
    """Members lie together by cell."""
    groups = itertools.groupby(members, key=lambda member: id(member[0]))
    together = [list(group) for _, group in groups]
    return Pack(tuple((group[0][0], tuple(seed for _, seed in group)) for group in together))


def _row_bytes(cell: Cell) -> int:
    """Of one seed, with the rows of all its schedules."""
    if isinstance(cell.config, Experiment):
        records = cell.config.steps // cell.config.record_every
        return len(cell.config.schedules) * (ROW_BYTES + 2 * records * NUMBER_BYTES)
    training = cell.config.training
    evaluations, losses = training.steps // training.eval_every + 1, training.steps // training.log_every + 1
    return ROW_BYTES + (len(CURVES) * evaluations + losses) * NUMBER_BYTES


def shape_of(cell: Cell) -> str:
    """Of cells that differ in nothing but the learning rate the same: their seeds go into one pack."""
    if isinstance(cell.config, Experiment):
        return repr(cell.config)
    config = cell.config
    return repr((config.tunnel, config.model, dataclasses.replace(config.training, lr=1.0)))


def _pack_size(cell: Cell, cost: Cost, jobs: int, workers: int, device: str) -> int:
    room = int(memory(device) * MEMORY_SHARE / workers)
    fits = room // max(cost.bytes, 1)
    if fits < 1:
        raise ValueError(f"{cell.name}: one seed needs {cost.bytes:,} bytes and a worker has {room:,}")
    if device != "cpu":
        return int(fits)
    most = HEAD_SEEDS if isinstance(cell.config, Experiment) else MODEL_SEEDS
    return int(max(1, min(most, fits, -(-jobs // (PACKS_PER_WORKER * workers)))))


def memory(device: str = "cpu") -> int:
    """Bytes free on the device."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # no such count outside Linux
        return 4 << 30


def measure(cell: Cell, seed: int, device: str = "cpu") -> Cost:
    """Memory and time of one seed, from two short looks at it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if isinstance(cell.config, Experiment):
            return _measure_head(cell.config, seed, device)
        return _measure_model(cell.config, seed, device)
    finally:
        torch.set_num_threads(threads)


def _measure_model(config: RunConfig, seed: int, device: str) -> Cost:
    engine = Engine(RunConfig(config.tunnel, config.model, config.training, (seed,)), device)
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        engine.update()
    # Weights, gradients and the two running means of the optimiser; twice the activations, for their gradients.
    weights = sum(p.numel() * p.element_size() for p in engine.parameters)
    engine.update()
    started, steps = time.perf_counter(), 0
    while steps < 3 or time.perf_counter() - started < 0.1:
        engine.update()
        steps += 1
    each = (time.perf_counter() - started) / steps
    return Cost(4 * weights + 2 * sum(kept.values()), each * config.training.steps)


def _measure_head(experiment: Experiment, seed: int, device: str) -> Cost:
    # The trainer's start-up (data, weights) counts once; the rest is linear in the steps.
    short = dataclasses.replace(experiment, steps=min(experiment.steps, experiment.record_every))
    train_seeds(short, [seed], short.schedules, device)
    seeds = range(seed, seed + (HEAD_SAMPLE if experiment.length <= 256 else 1))
    started = time.perf_counter()
    train_seeds(short, seeds, short.schedules, device)
    spent = (time.perf_counter() - started) / len(seeds)
    chain = experiment.length * (experiment.tunnel.dimensions + 2 * experiment.head + 2 * experiment.values) * 4
    curves = 8 * experiment.steps
    return Cost(4 * len(short.schedules) * (chain + curves), spent * experiment.steps / short.steps)
