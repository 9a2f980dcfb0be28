"""A tunnel small enough to check by hand: drawing all but one ball, without replacement, from an urn.

Two balls of each of C colours. Having seen n_c balls of colour c among k, the next one has colour c with probability
(2 − n_c) / (2C − k): exact, different in every sequence, and zero for exhausted colours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bayesattn_fast.tunnels.protocol import Batch, Stream


@dataclass(frozen=True)
class Urn:
    """C colours; at each of `draws` draws, predict the next."""

    colours: int = 4
    draws: int = 5
    name: ClassVar[str] = "urn"
    primitive: ClassVar[str] = "counting"

    @property
    def length(self) -> int:
        return self.draws

    @property
    def vocabulary(self) -> int | None:
        return self.colours

    @property
    def input_size(self) -> int | None:
        return None

    @property
    def classes(self) -> int:
        return self.colours

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(self.draws))

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
        order = torch.stack(
            [torch.stack([self._order(seed, step, stream, i) for i in range(first, first + size)]) for seed in seeds]
        )
        drawn = (order % self.colours).to(device)
        inputs, targets = drawn[..., : self.draws], drawn[..., 1 : self.draws + 1]
        predictive = self.predictive(inputs)
        entropy = -torch.xlogy(predictive, predictive).sum(-1) / torch.log(torch.tensor(2.0))
        return Batch(inputs, targets, predictive, entropy)

    def _order(self, seed: int, step: int, stream: Stream, sequence: int) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, step, int(stream), sequence)))
        return torch.rand(2 * self.colours, generator=generator).argsort()

    def predictive(self, inputs: Tensor) -> Tensor:
        """The exact predictive after each draw, (…, draws, C)."""
        left = 2 - torch.nn.functional.one_hot(inputs, self.colours).cumsum(-2)
        return left / left.sum(-1, keepdim=True)

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        last = torch.nn.functional.one_hot(batch.inputs, self.colours)
        return {"last draw only": (2 - last) / (2 * self.colours - 1)}

    def with_length(self, scored: int) -> "Urn":
        return replace(self, draws=scored)
