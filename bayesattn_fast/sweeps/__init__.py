"""Sweeps: tunnels × models × settings × seeds, packed, on this machine or on Ray, one shard for each pack."""

from .file import Cell, Sweep, read_sweep, sweep_of
from .plan import Plan, make_plan
from .run import run_sweep
from .store import Store

__all__ = ["Cell", "Plan", "Store", "Sweep", "make_plan", "read_sweep", "run_sweep", "sweep_of"]
