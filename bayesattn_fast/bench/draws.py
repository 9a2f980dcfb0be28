"""A tunnel's batch against the reference sampler's on the CPU: what is drawn bit for bit, the answers to one rounding.

Every back end draws from Philox in integers, or in float64 operations that round the same everywhere.
"""

import torch
from torch import Tensor

from ..backends import backend
from ..tunnels import Batch, Stream, Tunnel
from .case import OURS, Case, Contender, Draw, Prepared
from .limits import Cost

SEEDS, SIZE, STEP = 3, 17, 2**32 - 1
ROUNDING = torch.finfo(torch.float32).eps


def draw_cases(op: str, tunnel: Tunnel) -> list[Case]:
    """The inputs and targets of `tunnel`, whose sampler is part of `op`, and its exact predictives."""
    return [
        _case(op, tunnel, "draws, bit for bit", ("inputs", "targets"), 0.0),
        _case(op, tunnel, "answers", ("predictive", "entropy"), ROUNDING),
    ]


def _case(op: str, tunnel: Tunnel, work: str, fields: tuple[str, ...], tolerance: float) -> Case:
    return Case(
        op, f"{tunnel.name}: {work}", {"seeds": SEEDS, "batch": SIZE, "N": tunnel.length}, torch.float32, "verify",
        "sequences", SEEDS * SIZE, Cost(0.0), tolerance, lambda draw, _: _prepare(draw, tunnel, fields), results=fields,
    )  # fmt: skip


def _prepare(draw: Draw, tunnel: Tunnel, fields: tuple[str, ...]) -> Prepared:
    seeds = [int(seed) for seed in draw.integers(2**62, SEEDS)]

    def batch(device: torch.device) -> tuple[Tensor, ...]:
        made: Batch = tunnel.sample(seeds, STEP, SIZE, stream=Stream.HELD_OUT, first=2**31, device=device)
        return tuple(getattr(made, field) for field in fields)

    def exact() -> tuple[Tensor, ...]:
        with backend("reference"):
            return batch(torch.device("cpu"))

    return Prepared({OURS: Contender(lambda: batch(draw.device))}, exact)
