"""Scores against the exact posterior: per position and overall, per seed, beside predictors that learnt nothing."""

from .evaluate import Evaluation, evaluate
from .metrics import METRICS
from .summary import MODEL, Interval

__all__ = ["METRICS", "MODEL", "Evaluation", "Interval", "evaluate"]
