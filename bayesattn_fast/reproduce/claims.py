"""A claim of the papers beside what was found here, and the word that judges it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..evaluation.summary import Interval
from ..report.numbers import number

VerdictWord = Literal["holds", "holds in part", "does not hold", "not run at this scale"]


@dataclass(frozen=True)
class Claim:
    """text: what is claimed; paper: the papers' number; ours: what was found; rule: when it holds."""

    text: str
    paper: str
    ours: str
    verdict: VerdictWord
    rule: str

    def as_json(self) -> dict[str, str]:
        """Plain strings by field."""
        return asdict(self)


def judged(whole: bool, part: bool = False) -> VerdictWord:
    """The word for a claim that holds whole, in part, or not."""
    return "holds" if whole else "holds in part" if part else "does not hold"


def not_run(text: str, paper: str, missing: str) -> Claim:
    """A claim that nothing was computed for, and what is missing."""
    return Claim(text, paper, missing, "not run at this scale", "")


def shown(interval: Interval | dict[str, Any]) -> str:
    """0.0191 [0.0169, 0.0214]; the mean alone where there is no interval."""
    found = Interval(**interval) if isinstance(interval, dict) else interval
    if found.low is None or found.high is None:
        return number(found.mean)
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % interval of one number per seed, ready for JSON: what is not finite is null."""
    import math

    from ..evaluation.summary import interval

    found = asdict(interval(list(values)))
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in found.items()}
