"""Scores against the exact posterior: per position and overall, per seed, beside predictors that learnt nothing."""

from bayesattn_fast.evaluation.evaluate import Evaluation, evaluate
from bayesattn_fast.evaluation.metrics import METRICS
from bayesattn_fast.evaluation.summary import MODEL, Interval

__all__ = ["METRICS", "MODEL", "Evaluation", "Interval", "evaluate"]
