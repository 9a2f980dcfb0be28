"""The wind tunnels by name, and the sizes of their presets.

`make("bijection", symbols=8, pairs=7)` or `preset("hmm", "quick")`. Quick sizes train on two CPU cores in minutes;
paper sizes are those of arXiv 2512.22471 and 2512.22473, where these give any.
"""

from difflib import get_close_matches
from typing import Any

from bayesattn_fast.tunnels.bijection import Bijection
from bayesattn_fast.tunnels.hmm import Hmm
from bayesattn_fast.tunnels.markov import Markov
from bayesattn_fast.tunnels.protocol import Batch, Stream, Tunnel
from bayesattn_fast.tunnels.recall import Recall
from bayesattn_fast.tunnels.regression import Regression

TUNNELS: dict[str, type[Any]] = {kind.name: kind for kind in (Bijection, Hmm, Regression, Recall, Markov)}

PRESETS: dict[str, dict[str, Tunnel]] = {
    "quick": {
        "bijection": Bijection(symbols=8, pairs=7),
        "hmm": Hmm(observations=10),
        "regression": Regression(pairs=16),
        "recall": Recall(pairs=8, symbols=32, fillers=4, queries=8),
        "markov": Markov(chain=65),
    },
    "paper": {
        "bijection": Bijection(symbols=20, pairs=19),
        "hmm": Hmm(observations=20),
        "regression": Regression(dimensions=4, pairs=32),
        "recall": Recall(pairs=64, symbols=256, fillers=32),
        "markov": Markov(chain=2000),
    },
}


def make(name: str, **sizes: Any) -> Tunnel:
    """The tunnel of that name with the given sizes; ValueError for a name or a size that it does not know."""
    kind = TUNNELS[_known(name, "tunnel", TUNNELS)]
    for field in sizes:
        _known(field, f"{name} size", kind.__dataclass_fields__)
    return kind(**sizes)


def preset(name: str, sizes: str) -> Tunnel:
    """The tunnel of that name in its "quick" or "paper" sizes; ValueError for a name that does not exist."""
    return PRESETS[_known(sizes, "preset", PRESETS)][_known(name, "tunnel", TUNNELS)]


def _known(name: str, what: str, known: Any) -> str:
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
        raise ValueError(f"there is no {what} {name!r}; {hint}")
    return name


__all__ = [
    "PRESETS",
    "TUNNELS",
    "Batch",
    "Bijection",
    "Hmm",
    "Markov",
    "Recall",
    "Regression",
    "Stream",
    "Tunnel",
    "make",
    "preset",
]
