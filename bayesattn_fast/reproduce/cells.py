"""The cells of Table 2: four architectures on five tunnels, with the parameter counts of each tunnel matched.

The transformer has the preset's sizes. The other architectures have a depth of their own and the width that brings
their number of parameters nearest to the transformer's, found by search.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .. import models, tunnels
from ..models import BLOCKS, ModelConfig
from ..training import RunConfig, preset
from ..tunnels.protocol import Tunnel

SCALES = ("quick", "paper")
ARCHITECTURES = tuple(BLOCKS)
TUNNELS = ("bijection", "recall", "markov", "hmm", "regression")
TOLERANCE = 0.02
"""Largest accepted share by which a parameter count may miss the transformer's."""

_DEPTH: dict[str, dict[str, int]] = {
    "quick": {"mamba": 4, "lstm": 3, "mlp": 3},
    "paper": {"mamba": 12, "lstm": 3, "mlp": 9},
}
STEPS = {("recall", "quick"): 3000}
"""Tunnels trained for longer than their preset says: recall is learnt all at once, in some seeds after its 2000."""
LONGER: dict[tuple[str, str], tuple[dict[str, int], ...]] = {
    ("hmm", "quick"): ({"observations": 15}, {"observations": 25}),
    ("hmm", "paper"): ({"observations": 30}, {"observations": 50}),
    ("recall", "quick"): ({"pairs": 12}, {"pairs": 16}),
    ("recall", "paper"): ({"pairs": 96}, {"pairs": 128}),
}
"""What length generalisation is tested on: at the quick scale lengths keep the papers' ratios, 20 → 30 and 50."""


@dataclass(frozen=True)
class Cell:
    """One architecture on one tunnel, all seeds in one run."""

    tunnel: str
    architecture: str
    scale: str
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """Folder of the run."""
        return f"{self.tunnel}-{self.architecture}"

    @property
    def config(self) -> RunConfig:
        """What the run trains."""
        start = preset(self.tunnel, self.scale, self.seeds)
        steps = STEPS.get((self.tunnel, self.scale), start.training.steps)
        training = replace(start.training, steps=steps)
        return replace(start, model=matched(self.tunnel, self.architecture, self.scale), training=training)

    def folder(self, runs: Path) -> Path:
        """Where the run lies below the folder of all runs."""
        return runs / self.name


def cells(scale: str, seeds: tuple[int, ...]) -> list[Cell]:
    """All cells of a scale. ValueError for an unknown scale."""
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}")
    return [Cell(tunnel, architecture, scale, seeds) for tunnel in TUNNELS for architecture in ARCHITECTURES]


def longer_tunnels(tunnel: str, scale: str) -> list[Tunnel]:
    """The tunnel at each greater length; none where length is not varied."""
    start: Any = tunnels.preset(tunnel, scale)
    return [replace(start, **sizes) for sizes in LONGER.get((tunnel, scale), ())]


@cache
def matched(tunnel: str, architecture: str, scale: str) -> ModelConfig:
    """Sizes of an architecture with the transformer's number of parameters, within TOLERANCE.

    Learned positions reach the longest sequence that the model will be tested on, in every architecture that has them.
    """
    start = preset(tunnel, scale)
    reach = max(t.length for t in [start.tunnel, *longer_tunnels(tunnel, scale)])
    base = replace(start.model, max_length=reach)
    if architecture == "transformer":
        return base
    goal = parameter_count(base, start.tunnel)
    shape = ModelConfig(architecture, _DEPTH[scale][architecture], heads=1, max_length=reach)
    width = _width(shape, start.tunnel, goal)
    found = replace(shape, d_model=width)
    missed = abs(parameter_count(found, start.tunnel) / goal - 1)
    if missed > TOLERANCE:
        raise ValueError(f"no width of {architecture} comes within 2 % of {goal:,} parameters on {tunnel}")
    return found


def _width(shape: ModelConfig, tunnel: Tunnel, goal: int) -> int:
    """The width whose count is nearest to the goal, by bisection: counts grow with width."""
    low, high = 1, 4096
    while high - low > 1:
        middle = (low + high) // 2
        if parameter_count(replace(shape, d_model=middle), tunnel) <= goal:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda width: abs(parameter_count(replace(shape, d_model=width), tunnel) - goal))


def parameter_count(config: ModelConfig, tunnel: Tunnel) -> int:
    """Trainable numbers of one seed; nothing is allocated."""
    import torch

    from ..models.sequence import SequenceModel

    class Uninitialised(SequenceModel):
        def reset_parameters(self) -> None:
            pass

    with torch.device("meta"):
        return Uninitialised(config, tunnel, (0,), models.BLOCKS[config.model]).parameter_count()
