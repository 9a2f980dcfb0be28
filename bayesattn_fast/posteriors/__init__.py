"""Exact posteriors, one function per task. Shapes: B sequences, T or L positions, S states, C or V classes."""

from bayesattn_fast.posteriors.bijection import BijectionPredictive, bijection_predictive
from bayesattn_fast.posteriors.hmm import HmmFilter, hmm_filter
from bayesattn_fast.posteriors.markov import MarkovPredictive, markov_predictive
from bayesattn_fast.posteriors.recall import RecallPredictive, recall_predictive
from bayesattn_fast.posteriors.regression import RegressionPredictive, regression_predictive

__all__ = [
    "BijectionPredictive",
    "HmmFilter",
    "MarkovPredictive",
    "RecallPredictive",
    "RegressionPredictive",
    "bijection_predictive",
    "hmm_filter",
    "markov_predictive",
    "recall_predictive",
    "regression_predictive",
]
