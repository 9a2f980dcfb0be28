"""Which tiles, warps and pipeline stages a call gets: a table, not a search, so that results never depend on timing."""

from typing import NamedTuple

import triton
from torch import Tensor

from .problem import Config, padded

class Schedule(NamedTuple):
    """block_m queries by block_n keys at a time; whole: one tile holds every key of a head (in the backward pass every
    query too), so that there is no loop."""

    whole: bool
    block_m: int
    block_n: int
    warps: int
    stages: int


def apply(config: Config, schedule: Schedule) -> Config:
    return config._replace(whole=schedule.whole, block_m=schedule.block_m, block_n=schedule.block_n)

def forward_schedule(q, k, v, tf32): raise NotImplementedError
def backward_schedule(q, k, v, tf32): raise NotImplementedError

class BackwardSchedule(NamedTuple):
    whole: Schedule | None
    rows: Schedule | None
    columns: Schedule | None
