"""What a wind tunnel is: a task whose exact posterior predictive is known at every scored position.

Shapes: E seeds, B sequences, N positions, P scored positions, C answer classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


class Stream(IntEnum):
    """Independent random streams of one seed: what a draw is for."""

    TRAIN = 0
    HELD_OUT = 1
    WEIGHTS = 2
    WORLD = 3  # what is fixed for all seeds, such as the symbol embeddings of the Markov chain


@dataclass(frozen=True)
class Batch:
    """B sequences for each of E seeds, with the truth about them.

    inputs (E, B, N) int64 tokens, or (E, B, N, d_in) float32; targets (E, B, P) int64, the sampled answers;
    predictive (E, B, P, C) float32, the exact posterior predictive; entropy (E, B, P) float32, of it, in bits.
    """

    inputs: Tensor
    targets: Tensor
    predictive: Tensor
    entropy: Tensor


@runtime_checkable
class Tunnel(Protocol):
    """A frozen dataclass of the task's sizes; its methods are pure functions of (sizes, seed, step, sequence).

    A class that inherits from this one need not say what holds of most: no real inputs, no reference predictors of its
    own, no other lengths.
    """

    name: ClassVar[str]
    primitive: ClassVar[str]
    """What inference primitive the task tests, in a few words."""

    @property
    def length(self) -> int:
        """N, positions per sequence."""

    @property
    def vocabulary(self) -> int | None:
        """Number of input symbols; None for real inputs."""
        return None

    @property
    def input_size(self) -> int | None:
        """d_in of real inputs; None for tokens."""
        return None

    @property
    def classes(self) -> int:
        """C, size of the answer alphabet."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The P scored positions, ascending; the answer is predicted from the inputs up to and including them."""

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
        """Sequences first … first + size − 1 of every seed at `step`: the same bits in any split of a batch."""

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        """Untrained predictors of this task beyond the common ones (uniform, constant, position-only).

        Each (E, B, P, C) float32, by name; for the HMM the one-step and window filters, for recall the uniform over
        stored values.
        """
        return {}

    def with_length(self, scored: int) -> Self:
        """The same task with `scored` scored positions (length generalisation); ValueError where it has none."""
        raise ValueError(f"{self.name} has {len(self.positions)} scored positions and no other length")
