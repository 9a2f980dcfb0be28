"""The toy of the second paper: a head so small that its routing and its values can be drawn.

T positions x_i ∈ R³, one target class each, d_k = d_v = 2, every weight from N(0, deviation²), in float64.
Everything is a function of the seed. Source: "Gradient Dynamics of Attention", arXiv 2512.22473.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.single_head.reference import Dense
from ..models.initial import normal_weights
from ..ops.single_head import MATRICES, attention_cross_entropy, attention_maps, single_head_step

INPUTS, HEAD, VALUES = 3, 2, 2


@dataclass(frozen=True)
class Toy:
    """The settings of a toy."""

    seed: int = 0
    steps: int = 100
    rate: float = 0.5
    ratio: float = 1.0
    """Rate of w_v over the rate of the other matrices."""
    length: int = 5
    classes: int = 3
    deviation: float = 0.5
    causal: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must not be negative; got {self.seed}")
        for name, least in (("steps", 1), ("length", 2), ("classes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        for name in ("rate", "ratio", "deviation"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite; got {getattr(self, name)}")

    def data(self) -> tuple[Tensor, Tensor]:
        """x (T, 3) from N(0, 1) and the target of each position (T,): classes in turn, so that each occurs."""
        x = normal_weights([self.seed], "x", (self.length, INPUTS), 1.0)[0].double()
        return x, torch.arange(self.length) % self.classes

    def weights(self) -> list[Tensor]:
        """w_q, w_k, w_v, w_out before the first step."""
        shapes = ((INPUTS, HEAD), (INPUTS, HEAD), (INPUTS, VALUES), (VALUES, self.classes))
        drawn = (normal_weights([self.seed], name, s, self.deviation) for name, s in zip(MATRICES, shapes, strict=True))
        return [w[0].double() for w in drawn]


class Moved(NamedTuple):
    """What `train` saw, T positions and S steps."""

    loss: Tensor
    """(S + 1,) nats, before every step and after the last."""
    values: Tensor
    """(S + 1, T, 2): v_j."""
    pull: Tensor
    """(T, 2): −∂L/∂v_j = −Σ_i α_ij u_i before the first step, where the queries that use v_j would have it go."""
    before: Dense
    """Maps before the first step, each (T, T)."""
    after: Dense
    """Maps after the last."""
    readout: Tensor
    """(2, C): w_out after the last step."""
    targets: Tensor
    """(T,)."""

    @property
    def agreement(self) -> float:
        """Share of the routing that moved, Σ|Δα|, that moved towards a positive advantage or away from a negative one,
        by the advantages before the first step. Half where the advantage tells nothing."""
        change = self.after.responsibility - self.before.responsibility
        with_it = change.abs()[change.sign() == self.before.advantage.sign()].sum()
        return float(with_it / change.abs().sum())


def train(toy: Toy) -> Moved:
    """Full-batch gradient descent on the mean cross-entropy. ValueError where the loss stops being finite."""
    (x, targets), weights = toy.data(), toy.weights()
    first = _maps(toy, x, targets, weights)
    q, k, v = (x @ w for w in weights[:3])
    pull = -attention_cross_entropy(q, k, v, weights[3], targets, causal=toy.causal).dv
    rates = [toy.rate, toy.rate, toy.rate * toy.ratio, toy.rate]
    losses, values = [], []
    for step in range(toy.steps + 1):
        found = single_head_step(x, targets, weights[0], weights[1], weights[2], weights[3], causal=toy.causal)
        if not found.loss.isfinite():
            raise ValueError(f"rate must let the loss stay finite; got {toy.rate}, with which it ends at step {step}")
        losses.append(found.loss)
        values.append(x @ weights[2])
        if step < toy.steps:
            weights = [w - rate * gradient for w, rate, gradient in zip(weights, rates, found[1:], strict=True)]
    last = _maps(toy, x, targets, weights)
    return Moved(torch.stack(losses), torch.stack(values), pull, first, last, weights[3], targets)


def _maps(toy: Toy, x: Tensor, targets: Tensor, weights: list[Tensor]) -> Dense:
    q, k, v = (x @ w for w in weights[:3])
    return attention_maps(q, k, v, weights[3], targets, causal=toy.causal)
