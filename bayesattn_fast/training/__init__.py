"""Training of packed ensembles: configuration, engine, runs on disk."""

from .config import RunConfig, TrainingConfig, parse_seeds
from .engine import Engine
from .lifecycle import Interrupted, Run, fit, load_engine
from .presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "Engine",
    "Interrupted",
    "Run",
    "RunConfig",
    "TrainingConfig",
    "fit",
    "load_engine",
    "parse_seeds",
    "preset",
]
