"""The wind tunnels by name, and the sizes of their presets.

`make("bijection", symbols=8, pairs=7)` or `preset("hmm", "quick")`; `register_tunnel` adds one of your own. Quick sizes
train on two CPU cores in minutes; paper sizes are those of arXiv 2512.22471 and 2512.22473, where these give any.
"""

from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from bayesattn_fast.tunnels.bijection import Bijection
from bayesattn_fast.tunnels.hmm import Hmm
from bayesattn_fast.tunnels.markov import Markov
from bayesattn_fast.tunnels.protocol import Batch, Stream, Tunnel
from bayesattn_fast.tunnels.recall import Recall
from bayesattn_fast.tunnels.regression import Regression
from bayesattn_fast.tunnels.rows import Rows

Kind = TypeVar("Kind", bound=type[Any])

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


_BUILT_IN = frozenset(TUNNELS)
_PARTS = [name for name in (*Tunnel.__annotations__, *vars(Tunnel)) if not name.startswith("_")]
_REQUIRED = ("name", "primitive", "length", "classes", "positions", "sample")


def register_tunnel(kind: Kind) -> Kind:
    """Make a tunnel of your own known by its `name`, as a decorator of its class; both presets are its default sizes.

    Doing it again under the same name replaces the class, as a notebook does. Raises TypeError where it is no frozen
    dataclass, has a size without a default, or lacks part of the Tunnel protocol; ValueError for a built-in's name.
    """
    own: Any = kind
    if not (is_dataclass(kind) and own.__dataclass_params__.frozen):
        raise TypeError(f"a tunnel is a frozen dataclass of its sizes; got {own!r}")
    if bare := [field.name for field in fields(own) if not hasattr(own, field.name)]:
        raise TypeError(f"every size of a tunnel needs a default; {kind.__name__} gives {bare[0]} none")
    # Whoever inherits from Tunnel has all its parts, but those that say nothing there must be said.
    unsaid = [part for part in _REQUIRED if getattr(own, part, None) is getattr(Tunnel, part, None)]
    if missing := [part for part in _PARTS if part in unsaid or not hasattr(own, part)]:
        raise TypeError(f"{kind.__name__} is no tunnel: it lacks {', '.join(missing)}")
    name = own.name
    if name in _BUILT_IN:
        raise ValueError(f"the tunnel {name!r} comes with the package; choose another name for {kind.__name__}")
    TUNNELS[name] = own
    for sizes in PRESETS.values():
        sizes[name] = own()
    return kind


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
    "Rows",
    "Stream",
    "Tunnel",
    "make",
    "preset",
    "register_tunnel",
]
