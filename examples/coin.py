"""A tunnel of your own: flips of a coin whose bias is unknown, and uniform on [0, 1].

    python examples/coin.py                                    trains a transformer on it: half a minute
    bayesattn --load examples/coin.py train coin --seeds 3     every command knows it then

Exact (Laplace's rule of succession): after h heads in k flips the next is heads with probability (h + 1)/(k + 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

import bayesattn_fast as ba
from bayesattn_fast.tunnels import Batch, Rows, Stream, Tunnel


@ba.register_tunnel
@dataclass(frozen=True)
class Coin(Tunnel):
    """The flips of a coin of unknown bias, each predicted from those before it."""

    name: ClassVar[str] = "coin"
    primitive: ClassVar[str] = "counting"

    flips: int = 16
    """Flips to predict."""

    @property
    def length(self) -> int:
        return self.flips

    @property
    def vocabulary(self) -> int:
        return 3  # tails, heads, and the start

    @property
    def classes(self) -> int:
        return 2

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(self.flips))

    def sample(
        self, seeds: Sequence[int], step: int, size: int, *,
        stream: Stream = Stream.TRAIN, first: int = 0, device: torch.device | str = "cpu",
    ) -> Batch:  # fmt: skip
        rows = Rows.of(seeds, step, size, stream, first, device)
        numbers = rows.uniform(1 + self.flips)  # a row for each sequence: its bias, then its flips
        flips = (numbers[:, 1:] < numbers[:, :1]).long()
        shown = torch.cat([torch.full_like(flips[:, :1], 2), flips[:, :-1]], 1)
        heads = flips.cumsum(1) - flips
        p = (heads + 1) / (torch.arange(self.flips, device=heads.device) + 2)
        return rows.batch(shown, flips, torch.stack([1 - p, p], -1))

    def with_length(self, scored: int) -> Self:
        return replace(self, flips=scored)


def main(**settings: object) -> ba.Run:
    """Train on it and print the score; settings are those of ba.train."""
    run = ba.train("coin", **{"seeds": 2, "steps": 400, "overwrite": True, "out": "runs/coin"} | settings)
    print("KL from the exact posterior, bits:", run.evaluation.summary("kl"))
    print("best that reads no context:       ", run.evaluation.summary("kl", "best position-only"))
    print("report:", run.report)
    return run


if __name__ == "__main__":
    main()
