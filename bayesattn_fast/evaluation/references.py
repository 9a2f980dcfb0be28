"""Predictors that learnt nothing, computed exactly from the held-out truth: the levels a model has to beat.

Their distributions, which the KL, TVD, loss, accuracy and impossible mass are of:

    uniform              1/C for every answer
    best constant        one distribution for all positions: the mean predictive, which has the lowest loss of all
    best position-only   one distribution per position: the mean predictive there, likewise

Entropy errors take entropies alone, and a predictor free to choose its entropy does better than the entropy of a mean
predictive. So for the last two they are the lowest that any choice reaches: medians minimise mean absolute errors.

Everything is per seed, on that seed's own held-out sequences, so that a seed scores the same alone and among others.
"""

import torch
from torch import Tensor

UNIFORM = "uniform"
BEST_CONSTANT = "best constant"
POSITION_ONLY = "best position-only"
EXACT = "exact posterior"
"""The exact predictive scored like a model: KL 0, loss at the floor; the level no model can beat."""


def common_references(mean_predictive: Tensor) -> dict[str, Tensor]:
    """The predictors that know nothing of the context, as probabilities that broadcast against (E, B, P, C).

    mean_predictive (E, P, C): the exact predictive averaged over the held-out sequences.
    """
    classes = mean_predictive.shape[-1]
    return {
        UNIFORM: torch.full_like(mean_predictive, 1 / classes).unsqueeze(1),
        BEST_CONSTANT: mean_predictive.mean(1)[:, None, None],
        POSITION_ONLY: mean_predictive.unsqueeze(1),
    }


def best_constant_entropy(entropies: Tensor) -> dict[str, Tensor]:
    """Entropy scores of the best single number, in bits, each (E, P).

    entropies (E, S, P): Bayes entropies of S sequences. `entropy_abs_error` is that of the median over sequences and
    positions. `entropy_mae` is that of `entropy_bits`, the median over positions of the mean entropies. Two numbers,
    since each is the best for its own score.
    """
    entropies = entropies.to(torch.float64)
    means = entropies.mean(1)
    for_means = means.median(-1, keepdim=True).values.expand_as(means)
    for_all = entropies.flatten(1).median(-1).values[:, None, None]
    return {
        "entropy_bits": for_means,
        "entropy_mae": (for_means - means).abs(),
        "entropy_abs_error": (entropies - for_all).abs().mean(1),
    }


def best_position_entropy(entropies: Tensor) -> dict[str, Tensor]:
    """Entropy scores of the best number for each position, in bits, each (E, P).

    entropies (E, S, P). `entropy_abs_error` is that of the medians over sequences. `entropy_mae` is 0 by construction:
    under the papers' score the mean entropy of each position is a perfect answer, though it reads no context.
    """
    entropies = entropies.to(torch.float64)
    medians = entropies.median(1, keepdim=True).values
    return {
        "entropy_bits": entropies.mean(1),
        "entropy_mae": torch.zeros_like(entropies[:, 0]),
        "entropy_abs_error": (entropies - medians).abs().mean(1),
    }
