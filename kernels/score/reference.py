"""Scores of a prediction q = softmax(logits) against the exact predictive p over C classes, and a sampled answer y.

    loss  −Σ p ln q (nats)      sampled loss  −ln q_y (nats)      entropy  −Σ q log₂ q (bits)
    KL    Σ p log₂(p/q) (bits)  TVD           ½ Σ |p − q|         impossible mass  Σ q over classes with p = 0
    accuracy  1 where the most probable class is y, 1/n where y is one of n that tie, else 0
Gradients of the losses in the logits: q Σp − p and q − [y]; for a distribution p the former is q − p.

Terms with a factor of exactly 0 count 0; a loss or a KL is infinite where q rules out a class that p allows; everything
is NaN where no softmax exists. Shapes: logits and p (…, C), targets (…) int64, results (…).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

BITS = 1 / math.log(2)


class Scores(NamedTuple):
    """Every score of one prediction per row, each of the shape of the targets."""

    loss: Tensor
    sampled_loss: Tensor
    entropy_bits: Tensor
    kl: Tensor
    tvd: Tensor
    accuracy: Tensor
    impossible_mass: Tensor


def score(logits: Tensor, p: Tensor, targets: Tensor) -> Scores:
    """All scores, in the dtype of the logits."""
    log_q = torch.log_softmax(logits, dim=-1)
    return Scores(
        cross_entropy_nats(p, log_q),
        sampled_loss_nats(log_q, targets),
        entropy_bits(log_q),
        kl_bits(p, log_q),
        tvd(p, log_q),
        accuracy(log_q, targets).to(log_q.dtype),
        impossible_mass(p, log_q),
    )


def entropy_bits(log_q: Tensor) -> Tensor:
    """H(q) in bits."""
    return torch.special.entr(log_q.exp()).sum(-1) * BITS


def cross_entropy_nats(p: Tensor, log_q: Tensor) -> Tensor:
    """−Σ p ln q in nats: the loss, in expectation over answers drawn from p."""
    return -torch.where(p == 0, 0.0, p * log_q).sum(-1)


def kl_bits(p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q) in bits."""
    return (cross_entropy_nats(p, log_q) - torch.special.entr(p).sum(-1)) * BITS


def tvd(p: Tensor, log_q: Tensor) -> Tensor:
    """Total variation distance, 0 to 1."""
    return (p - log_q.exp()).abs().sum(-1) / 2


def impossible_mass(p: Tensor, log_q: Tensor) -> Tensor:
    """Probability that q gives to answers whose exact probability is 0."""
    return torch.where(p == 0, log_q.exp(), 0.0).sum(-1)


def accuracy(q: Tensor, targets: Tensor) -> Tensor:
    """1 where the most probable class is the target (…), 1/n where the target is one of n that tie, else 0.

    q (…, C): probabilities or their logarithms. Sharing ties makes chance level exact: uniform predictions score 1/C.
    NaN where q is NaN.
    """
    best = q == q.amax(-1, keepdim=True)
    hit = best.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return hit.to(torch.float64) / best.sum(-1)


def sampled_loss_nats(log_q: Tensor, targets: Tensor) -> Tensor:
    """−ln q(target) in nats."""
    return -log_q.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def cross_entropy(logits: Tensor, p: Tensor | None, targets: Tensor | None) -> Tensor:
    """Losses (…) to train on: against p where it is given, else on the targets."""
    log_q = torch.log_softmax(logits, dim=-1)
    if p is not None:
        return cross_entropy_nats(p, log_q)
    assert targets is not None
    return sampled_loss_nats(log_q, targets)
