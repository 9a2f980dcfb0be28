"""Is gradient descent on attention an EM algorithm? The sticky-chain experiment over many seeds, with its controls."""

from .experiment import Experiment, run, train_seeds
from .schedules import Schedule, schedules
from .summary import Summary

__all__ = ["Experiment", "Schedule", "Summary", "run", "schedules", "train_seeds"]
