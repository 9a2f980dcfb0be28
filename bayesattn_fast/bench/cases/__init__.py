"""One file per op: its sizes, its peers, its exact answer."""

import importlib
from collections.abc import Sequence

from ..case import Case

OPS = (
    "attention",
    "selective_scan",
    "causal_conv1d",
    "hmm",
    "regression",
    "elimination",
    "score",
    "single_head",
    "training",
)


def cases_of(ops: Sequence[str] = (), sizes: str = "all") -> list[Case]:
    """The cases of `ops` (all of them where none is named) at "tunnel", "llm" or "all" sizes."""
    return [
        case
        for op in ops or OPS
        for case in importlib.import_module(f".{op}", __name__).cases()
        if sizes in ("all", case.size)
    ]
