"""What all tunnels share: the sequences of a batch as rows, each with its own random words, and checks of sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesattn_fast.backends import resolve
from bayesattn_fast.kernels._native.problem import Draw
from bayesattn_fast.kernels.philox.reference import random_words, uniform
from bayesattn_fast.tunnels.protocol import Batch, Stream

if TYPE_CHECKING:
    from bayesattn_fast.kernels._triton.philox import Draws


@dataclass(frozen=True)
class Rows:
    """The R = E·B sequences of a batch, seed by seed: a sequence's words depend on its own names alone."""

    seeds: tuple[int, ...]
    step: int
    size: int
    stream: Stream
    first: int
    device: torch.device

    @classmethod
    def of(
        cls, seeds: Sequence[int], step: int, size: int, stream: Stream, first: int, device: torch.device | str
    ) -> "Rows":
        """Rows first … first + size − 1 of every seed; ValueError for an empty batch or a number out of range."""
        if len(seeds) == 0 or min(seeds) < 0 or max(seeds) >= 2**63:
            raise ValueError(f"seeds must be one or more integers in [0, 2⁶³); got {list(seeds)}")
        if size < 1:
            raise ValueError(f"size must be at least 1; got {size}")
        if not (0 <= step < 2**32 and 0 <= first <= 2**32 - size):
            raise ValueError(f"step, first and first + size − 1 must lie in [0, 2³²); got {step}, {first}, {size}")
        return cls(tuple(seeds), step, size, stream, first, torch.device(device))

    def natively(self, op: str) -> bool:
        """True where the native sampler of `op` draws this batch, and its answers with it."""
        return resolve(op, self.device) == "cpu"

    def by_triton(self, op: str) -> bool:
        """True where Triton draws on this batch's device, by those samplers of `op` that it has."""
        return resolve(op, self.device) == "triton"

    def draws(self) -> "Draws":
        """The names of the batch, for a Triton sampler."""
        from bayesattn_fast.kernels._triton.philox import Draws

        seeds = torch.tensor(self.seeds, dtype=torch.int64, device=self.device)
        return Draws(seeds, self.size, self.first, self.step, int(self.stream))

    def draw(self) -> Draw:
        """The names of the batch, for a native sampler."""
        return Draw.of(self.seeds, self.size, self.first, self.step, int(self.stream))

    def words(self, count: int) -> Tensor:
        """(R, count) random words, int64 in [0, 2³²)."""
        numbers = torch.arange(self.first, self.first + self.size, device=self.device).repeat(len(self.seeds))
        seeds = torch.tensor(self.seeds, dtype=torch.int64, device=self.device).repeat_interleave(self.size)
        return random_words(seeds, int(self.stream), self.step, numbers, count)

    def uniform(self, count: int) -> Tensor:
        """(R, count) random numbers in (0, 1), float64."""
        return uniform(self.words(count))

    def batch(self, inputs: Tensor, targets: Tensor, predictive: Tensor, entropy: Tensor | None = None) -> Batch:
        """Split R into (E, B) and round what is real to float32.

        inputs (R, N) or (R, N, d_in), targets (R, P), predictive (R, P, C), entropy (R, P) in bits: that of the
        predictive where it is left out.
        """
        if entropy is None:
            entropy = -torch.special.xlogy(predictive, predictive).sum(-1) / math.log(2.0)
        fields = [
            (field.float() if field.is_floating_point() else field).unflatten(0, (len(self.seeds), -1))
            for field in (inputs, targets, predictive, entropy)
        ]
        return Batch(*fields)


def at_least(task: object, **least: int) -> None:
    """Every named field of `task` is an integer of at least the given size; ValueError naming the field."""
    for field, bound in least.items():
        value = getattr(task, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            raise ValueError(f"{field} must be an integer of at least {bound}; got {value!r}")


def at_most(task: object, why: str, **most: int) -> None:
    """Every named field of `task` is at most the given number; ValueError naming the field and saying why."""
    for field, bound in most.items():
        if getattr(task, field) > bound:
            raise ValueError(f"{field} must be at most {bound} ({why}); got {getattr(task, field)}")
