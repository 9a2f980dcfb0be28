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


def settled_from(values: Sequence[float], limit: float) -> int | None:
    """First index from which on every value is below `limit`, None where the last one is not."""
    at_or_above = [i for i, value in enumerate(values) if not value < limit]
    first = at_or_above[-1] + 1 if at_or_above else 0
    return first if first < len(values) else None


def _settled(values: Sequence[float], share: float) -> int:
    """The same for a share of the first value; the last index where nothing moves or all of it does until the end."""
    found = settled_from(values, share * values[0])
    return len(values) - 1 if found is None else found
