"""How far predicted distributions are from the exact posterior predictive, at every scored position.

With p the exact predictive and q the model's, over C answer classes:

    entropy_bits   H(q) = −Σ q log₂ q            kl_bits  Σ p log₂(p / q)
    cross_entropy  −Σ p ln q, in nats            tvd      ½ Σ |p − q|
    accuracy       argmax q = sampled answer     impossible_mass  Σ q over answers with p = 0

Shapes: log_q and p (…, C) float64, p from `normalised`; results (…). Terms with a factor of exactly 0 count 0, so
logits of −inf are fine; a KL or a cross-entropy is infinite where q rules out an answer that p allows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.score.reference import (
    BITS,
    accuracy,
    cross_entropy_nats,
    entropy_bits,
    impossible_mass,
    kl_bits,
    sampled_loss_nats,
    tvd,
)
from ..ops.score import score

__all__ = [
    "BITS",
    "METRICS",
    "Metric",
    "accuracy",
    "cross_entropy_nats",
    "entropy_bits",
    "impossible_mass",
    "kl_bits",
    "log_of",
    "log_probabilities",
    "normalised",
    "pointwise",
    "sampled_loss_nats",
    "truth_scores",
    "tvd",
]


@dataclass(frozen=True)
class Metric:
    """What a column of results means."""

    label: str
    unit: str
    definition: str


METRICS = {
    "entropy_bits": Metric("predicted entropy", "bits", "Entropy of the predicted distribution, averaged."),
    "bayes_entropy_bits": Metric("Bayes entropy", "bits", "Entropy of the exact posterior predictive, averaged."),
    "entropy_mae": Metric(
        "entropy MAE",
        "bits",
        "The papers' score: average both entropies over sequences at each position, take the absolute difference, "
        "average over positions. Errors of opposite sign in different sequences cancel, so it can be zero for a "
        "predictor that knows the position and nothing else.",
    ),
    "entropy_abs_error": Metric(
        "entropy error",
        "bits",
        "The strict form: the absolute difference of the two entropies in each sequence at each position, averaged. "
        "Never below the entropy MAE.",
    ),
    "kl": Metric(
        "KL",
        "bits",
        "Kullback–Leibler divergence of the prediction from the exact predictive, KL(Bayes‖model): the bits lost per "
        "answer by believing the model. Zero only where both distributions are equal.",
    ),
    "tvd": Metric("TVD", "", "Total variation distance: half the summed absolute difference of probabilities, 0 to 1."),
    "loss": Metric(
        "loss",
        "nats",
        "Expected cross-entropy under the exact predictive (an exact expectation, not a sample), averaged.",
    ),
    "bayes_floor": Metric("Bayes floor", "nats", "The lowest expected loss any predictor can have: the Bayes entropy."),
    "gap": Metric("gap", "nats", "Loss minus Bayes floor; the KL in nats."),
    "sampled_loss": Metric("sampled loss", "nats", "−ln of the probability given to the sampled answer, averaged."),
    "accuracy": Metric(
        "accuracy",
        "",
        "How often the most probable answer is the sampled one; answers that tie for it share the credit.",
    ),
    "bayes_accuracy": Metric("Bayes accuracy", "", "The accuracy of the exact posterior predictive on the same draws."),
    "impossible_mass": Metric(
        "impossible mass", "", "Probability put on answers that the exact posterior predictive rules out."
    ),
}


def log_probabilities(logits: Tensor) -> Tensor:
    """ln q (…, C) in float64 from logits or log-probabilities (…, C); −inf allowed, NaN where all are −inf."""
    return torch.log_softmax(logits.to(torch.float64), dim=-1)


def normalised(probabilities: Tensor) -> Tensor:
    """Probabilities (…, C) in float64, summing to 1 beyond the rounding of float32."""
    probabilities = probabilities.to(torch.float64)
    return probabilities / probabilities.sum(-1, keepdim=True)


def log_of(probabilities: Tensor) -> Tensor:
    """ln p (…, C) in float64 of probabilities (…, C), renormalised."""
    return normalised(probabilities).log()


def truth_scores(p: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What the exact predictive itself scores: entropy in bits and nats, accuracy. Same shapes as `pointwise`."""
    floor = torch.special.entr(p).sum(-1)
    return {
        "bayes_entropy_bits": floor * BITS,
        "bayes_floor": floor,
        "bayes_accuracy": accuracy(p, targets),
    }


def pointwise(log_q: Tensor, p: Tensor, targets: Tensor, truth: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every metric of one prediction per answer, before averaging.

    log_q and p (E, B, P, C), targets (E, B, P) int64, truth from `truth_scores`. Returns (E, B, P) float64 by the names
    of METRICS; `entropy_mae` is missing, since it exists only after averaging over sequences.
    """
    found = score(log_q, p, targets)
    gap = found.loss - truth["bayes_floor"]
    return truth | {
        "entropy_bits": found.entropy_bits,
        "entropy_abs_error": (found.entropy_bits - truth["bayes_entropy_bits"]).abs(),
        "kl": gap * BITS,
        "tvd": found.tvd,
        "loss": found.loss,
        "gap": gap,
        "sampled_loss": found.sampled_loss,
        "accuracy": found.accuracy,
        "impossible_mass": found.impossible_mass,
    }
