"""Sticky Markov chain seen through noise: the training-dynamics task.

Symbols on a circle: y stays with probability 0.3 and otherwise moves with probability proportional to 1/distance. The
chain y_0 … y_{T−1} has T symbols and starts uniform. Input t = 1 … T − 1 is x_t = μ_{y_{t−1}} + N(0, I_d), and y_t is
scored there: N = T − 1 positions, all scored. The symbol means μ_s ~ N(0, I_d) are fixed by `embedding_seed`, the same
for every seed and sequence.

Exact: y_{t−1} is the hidden state of an HMM with Gaussian emissions, so p(y_t | x_1 … x_t) is its filter carried one
step; from the float32 numbers that the sequence shows. The noise-free bound H(Y_t | Y_{t−1}) is 1.8833 nats. The
authors' code mixes the diagonal in twice; `authors_matrix` gives theirs, which stays with 0.3498 and has 1.8292 nats.
Source: "Gradient Dynamics of Attention", arXiv 2512.22473.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.kernels.hmm import native
from bayesattn_fast.kernels.hmm.reference import gaussian_log_likelihoods, propagate
from bayesattn_fast.kernels.philox.draws import categorical
from bayesattn_fast.kernels.philox.reference import below, normal, random_words
from bayesattn_fast.posteriors import markov_predictive
from bayesattn_fast.tunnels.protocol import Batch, Stream
from bayesattn_fast.tunnels.rows import Rows, at_least


@dataclass(frozen=True)
class Markov:
    """Sticky chain of T = chain symbols out of `symbols`, in d = dimensions."""

    name: ClassVar[str] = "markov"
    primitive: ClassVar[str] = "one-step prediction"

    symbols: int = 8
    chain: int = 2000
    dimensions: int = 20
    stay: float = 0.3
    authors_matrix: bool = False
    embedding_seed: int = 0

    def __post_init__(self) -> None:
        at_least(self, symbols=2, chain=2, dimensions=1, embedding_seed=0)
        if not 0.0 <= self.stay < 1.0:
            raise ValueError(f"stay must lie in [0, 1); got {self.stay}")

    @property
    def length(self) -> int:
        return self.chain - 1

    @property
    def vocabulary(self) -> None:
        return None

    @property
    def input_size(self) -> int:
        return self.dimensions

    @property
    def classes(self) -> int:
        return self.symbols

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(self.length))

    def cumulative(self, device: torch.device | str = "cpu") -> Tensor:
        """Cumulative transition weights (S, S), int64, last column 2³²: what the chain is drawn from."""
        return self._world[0].to(device)

    def transition(self, device: torch.device | str = "cpu") -> Tensor:
        """Transition probabilities (S, S), float64: exactly the shares of `cumulative`."""
        return self._world[1].to(device)

    def means(self, device: torch.device | str = "cpu") -> Tensor:
        """μ (S, d) float32: row s is the WORLD stream's sequence s of the embedding seed."""
        return self._world[2].to(device)

    @cached_property
    def _world(self) -> tuple[Tensor, Tensor, Tensor]:
        """What all sequences share, made once: it would cost a small batch more than its draws."""
        cumulative = torch.tensor(self._weights(), dtype=torch.int64)
        shares = torch.diff(cumulative, dim=1, prepend=torch.zeros_like(cumulative[:, :1])).double() / 2**32
        symbols = torch.arange(self.symbols)
        seed = torch.full_like(symbols, self.embedding_seed)
        words = random_words(seed, int(Stream.WORLD), 0, symbols, self.dimensions + self.dimensions % 2)
        return cumulative, shares, normal(words)[:, : self.dimensions].float()

    def _weights(self) -> list[list[int]]:
        n, stay = self.symbols, Fraction(self.stay)
        near = [Fraction(0), *(Fraction(1, min(d, n - d)) for d in range(1, n))]
        if self.authors_matrix:
            total = stay + sum(near)
            row = [stay + (1 - stay) * stay / total, *((1 - stay) * p / total for p in near[1:])]
        else:
            row = [stay, *((1 - stay) * p / sum(near) for p in near[1:])]
        circle = [[row[(j - i) % n] for j in range(n)] for i in range(n)]
        return [[round(2**32 * sum(r[: j + 1])) for j in range(n)] for r in circle]

    @property
    def minimum_entropy(self) -> float:
        """H(Y_t | Y_{t−1}) in bits: the loss floor if inputs carried no noise."""
        return float(entropy_bits(self.transition())[0])

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
        """See Tunnel.sample. Words come in groups of 1 + d, d rounded up to even: in group t the first word draws y_t
        (t = 0: `below`; else its integer against row y_{t−1} of `cumulative`), the others the noise of x_{t+1}. A
        longer chain begins with the shorter one."""
        rows = Rows.of(seeds, step, size, stream, first, device)
        if rows.natively("hmm"):
            world = self.means(), self.transition(), self.cumulative()
            return rows.batch(*native.markov_sample(rows.draw(), self.length, *world))
        group = 1 + self.dimensions + self.dimensions % 2
        words = rows.words((self.chain - 1) * group + 1)
        states = self._walk(words[:, ::group])
        noise = normal(words[:, :-1].unflatten(1, (-1, group))[..., 1:])[..., : self.dimensions]
        means = self.means(device).double()
        inputs = (means[states[:, :-1]] + noise).float().double()
        exact = markov_predictive(inputs, means, self.transition(device), validate=False)
        return rows.batch(inputs, states[:, 1:].contiguous(), exact.predictive, exact.entropy)

    def _walk(self, words: Tensor) -> Tensor:
        """y_0 … y_{T−1}, (R, T): the successor of every symbol at every step first, then one lookup each."""
        successor = categorical(words[:, 1:, None], self.cumulative(words.device))
        states = [below(words[:, :1], self.symbols)]
        for t in range(self.chain - 1):
            states.append(successor[:, t].gather(1, states[-1]))
        return torch.cat(states, 1)

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        """ "last input only": forgets all inputs but x_t. "previous symbol known": is told y_{t−1}, the noise-free
        bound that no predictor from inputs reaches; at the first position, whose y_0 is no target, it is "last input
        only". Both start from the chain's stationary law, which is uniform."""
        transition, means = self.transition(batch.inputs.device), self.means(batch.inputs.device).double()
        scores = gaussian_log_likelihoods(means, batch.inputs.double(), 1.0)
        last = propagate(torch.softmax(scores, -1), transition)
        told = torch.cat([last[:, :, :1], transition[batch.targets[:, :, :-1]]], 2)
        return {"last input only": last.float(), "previous symbol known": told.float()}

    def with_length(self, scored: int) -> Self:
        return replace(self, chain=scored + 1)
