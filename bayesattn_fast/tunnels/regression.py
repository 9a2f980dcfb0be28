"""Bayesian linear regression in context: a continuous latent, answered over bins.

w ~ N(0, τ² I_d), fresh for every sequence; x_k ~ N(0, I_d); y_k = w·x_k + N(0, σ²). The inputs are real:
x_1 y_1 x_2 y_2 … x_L, N = 2L − 1 positions of d + 3 numbers: x (d), y, and two flags that say which of them is there.
y_k is scored at x_k, over C equal bins on ±3·√(σ² + d τ²) whose two end bins take the tails.

Exact: after k − 1 pairs y_k ~ N(m·x_k, σ² + x_kᵀ Σ x_k), so a bin has a difference of Gaussian CDFs; computed from the
float32 numbers that the sequence shows. "The Bayesian Geometry of Transformer Attention" (arXiv 2512.22471) names the
task without its sizes; d = 4, τ = 1, σ = 0.5, L = 32 and the bins are ours.
Primitive: a continuous latent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesattn_fast.kernels.philox.reference import normal
from bayesattn_fast.kernels.regression import native
from bayesattn_fast.kernels.regression.reference import bin_edges, bin_of, binned_normal, half_range
from bayesattn_fast.posteriors import checks, regression_predictive
from bayesattn_fast.tunnels.protocol import Batch, Stream
from bayesattn_fast.tunnels.rows import Rows, at_least


@dataclass(frozen=True)
class Regression:
    """Linear regression with d = dimensions, L = pairs and C = bins; the last pair lacks its y."""

    name: ClassVar[str] = "regression"
    primitive: ClassVar[str] = "a continuous latent"

    dimensions: int = 4
    pairs: int = 32
    tau: float = 1.0
    sigma: float = 0.5
    bins: int = 64

    def __post_init__(self) -> None:
        at_least(self, dimensions=1, pairs=1, bins=2)
        checks.positive(tau=self.tau, sigma=self.sigma)

    @property
    def length(self) -> int:
        return 2 * self.pairs - 1

    @property
    def vocabulary(self) -> None:
        return None

    @property
    def input_size(self) -> int:
        return self.dimensions + 3

    @property
    def classes(self) -> int:
        return self.bins

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(0, self.length, 2))

    def edges(self, device: torch.device | str = "cpu") -> Tensor:
        """The C − 1 inner edges of the bins, float64."""
        limit = half_range(self.dimensions, self.tau, self.sigma)
        return torch.tensor(bin_edges(self.bins, limit), dtype=torch.float64, device=device)

    def sample(
        self,
        seeds: Sequence[int],
        step: int,
        size: int,
        *,
        stream: Stream = Stream.TRAIN,
        first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """See Tunnel.sample. Normals in order: d for w, then for each k: d for x_k, one for the noise of y_k; normals
        2i and 2i + 1 come from words 2i and 2i + 1. Terms of w·x_k are added in order, the noise last."""
        rows = Rows.of(seeds, step, size, stream, first, device)
        if rows.natively("regression"):
            sizes = (self.pairs, self.dimensions, self.tau, self.sigma)
            return rows.batch(*native.regression_sample(rows.draw(), *sizes, self.edges()))
        d, per_pair = self.dimensions, self.dimensions + 1
        count = d + self.pairs * per_pair
        draws = normal(rows.words(count + count % 2))
        w = self.tau * draws[:, :d]
        pairs = draws[:, d:count].unflatten(1, (self.pairs, per_pair))
        x = pairs[..., :d].float().double()
        mean = w[:, :1] * x[..., 0]
        for i in range(1, d):
            mean = mean + w[:, i : i + 1] * x[..., i]
        y = (mean + self.sigma * pairs[..., d]).float().double()
        exact = regression_predictive(x, y, tau=self.tau, sigma=self.sigma, bins=self.bins, validate=False)
        targets = bin_of(y, self.edges(device))
        return rows.batch(self._inputs(x, y), targets, exact.predictive, exact.entropy)

    def _inputs(self, x: Tensor, y: Tensor) -> Tensor:
        d = self.dimensions
        inputs = x.new_zeros(len(x), 2 * self.pairs, self.input_size)
        inputs[:, 0::2, :d], inputs[:, 0::2, d + 1] = x, 1.0
        inputs[:, 1::2, d], inputs[:, 1::2, d + 2] = y, 1.0
        return inputs[:, :-1]

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        """ "prior predictive": N(0, σ² + τ² |x_k|²), which has seen x_k and no pair."""
        x = batch.inputs[:, :, 0::2, : self.dimensions].double()
        variance = self.sigma**2 + self.tau**2 * x.square().sum(-1)
        prior = binned_normal(torch.zeros_like(variance), variance, self.edges(x.device))
        return {"prior predictive": prior.float()}

    def with_length(self, scored: int) -> Self:
        return replace(self, pairs=scored)
