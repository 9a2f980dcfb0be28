"""Statistics over seeds: estimates with bootstrap intervals, comparisons, profiles, steps to a threshold."""

from .compare import Paired, holm, improvement, paired
from .estimates import STATISTICS, Estimate, estimate, iqm, mean, median, median_task, seeds_needed
from .profiles import Profile, profile, threshold_grid
from .thresholds import Steps, first_reach, steps_to_threshold

__all__ = [
    "STATISTICS",
    "Estimate",
    "Paired",
    "Profile",
    "Steps",
    "estimate",
    "first_reach",
    "holm",
    "improvement",
    "iqm",
    "mean",
    "median",
    "median_task",
    "paired",
    "profile",
    "seeds_needed",
    "steps_to_threshold",
    "threshold_grid",
]
