"""Frame–precision dissociation: attention settles first, precision comes after.

Over checkpoints, d(t) is the mean total variation distance of the attention maps to the final ones and e(t) the error.
The frame has settled at the first checkpoint from which on d stays below a share of its value at the start. What is
then left of the error, e(there) / e(end), says how much was learnt with the frame at rest; 1 means nothing.
Source: arXiv 2512.22471.
"""

from collections.abc import Sequence
from typing import NamedTuple

SHARE = 0.1


class Settling(NamedTuple):
    """frame: step at which attention settled; precision: that of the error's excess over its last value, by the same
    rule; left: the error at the first, over its final value."""

    frame: int
    precision: int
    left: float


def settling(
    steps: Sequence[int], distances: Sequence[float], errors: Sequence[float], *, share: float = SHARE
) -> Settling:
    """Read both curves, one value per checkpoint; the last checkpoint is the final state.

    ValueError where the lengths differ or there are fewer than two checkpoints.
    """
    if not len(steps) == len(distances) == len(errors) >= 2:
        raise ValueError(f"give the same number of steps, distances and errors, at least 2; got {len(steps)}")
    frame = _settled(distances, share)
    precision = _settled([abs(e - errors[-1]) for e in errors], share)
    left = errors[frame] / errors[-1] if errors[-1] > 0 else float("inf")
    return Settling(steps[frame], steps[precision], left)


def _settled(values: Sequence[float], share: float) -> int:
    """First index from which on all values stay below the share of the first one."""
    limit = share * values[0]
    above = [i for i, value in enumerate(values) if value > limit]
    return min(above[-1] + 1 if above else 0, len(values) - 1)
