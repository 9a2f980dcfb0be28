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
VERIFIED = ("philox", *OPS[:-1])
"""What has sizes for correctness alone."""


def cases_of(ops: Sequence[str] = (), sizes: str = "all", *, curves: bool = False) -> list[Case]:
    """The cases of `ops` (all of them where none is named) at the sizes of one kind, or "all": whatever is timed.

    curves: those that a curve of speed against length needs, too.
    """
    return [
        case
        for op in ops or (VERIFIED if sizes == "verify" else OPS)
        for case in importlib.import_module(f".{op}", __name__).cases()
        if sizes == case.size or (sizes == "all" and case.size != "verify") or (curves and case.curve)
    ]
