"""bayesattn dynamics toy: train a head of two dimensions and draw everything that moves."""

from dataclasses import dataclass
from pathlib import Path

from ..parsing import parse
from ..results import print_json
from .environment import environment


@dataclass(frozen=True)
class ToyFlags:
    """Train one head with two-dimensional values by gradient descent, and draw routing, advantage and value paths."""

    seed: int = 0
    """Decides data and weights."""
    steps: int = 100
    """Steps of gradient descent."""
    rate: float = 0.5
    """Learning rate."""
    ratio: float = 1.0
    """Rate of w_v over that of the other matrices; 10 is the EM-like schedule."""
    length: int = 5
    """Positions."""
    classes: int = 3
    """Classes."""
    deviation: float = 0.5
    """Standard deviation of the initial weights."""
    causal: bool = False
    """Let a position see itself and what came before only."""
    out: str = "runs/toy"
    """Folder of the page."""
    json: bool = False
    """Print the result as JSON."""


def main(words: list[str]) -> int:
    from ...dynamics.toy import Toy, train
    from ...dynamics.toy_page import verdict, write_toy

    flags = parse(ToyFlags, words, prog="bayesattn dynamics toy", description=ToyFlags.__doc__ or "")
    names = ("seed", "steps", "rate", "ratio", "length", "classes", "deviation", "causal")
    toy = Toy(**{name: getattr(flags, name) for name in names})
    moved = train(toy)
    command = f"bayesattn dynamics toy {' '.join(words)}".strip()
    page = write_toy(toy, moved, Path(flags.out), command, environment())
    if flags.json:
        maps = {"before": moved.before, "after": moved.after}
        print_json(
            {
                "report": str(page),
                "agreement": moved.agreement,
                "loss": moved.loss.tolist(),
                "values": moved.values.tolist(),
                **{when: {name: m.tolist() for name, m in found._asdict().items()} for when, found in maps.items()},
            }
        )
        return 0
    print(verdict(moved).text)
    print(f"report: {page}")
    return 0
