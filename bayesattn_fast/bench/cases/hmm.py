"""Filter of hidden Markov models, each sequence with its own matrices: posterior, predictive, evidence, entropy.

hmmlearn is given a part of the batch, since it takes one model at a time; it smooths as well, so only its evidence is
compared. A step takes 2 S² + 2 S O multiplications and additions and S + 1 logarithms.
"""

import torch
from torch import Tensor

from ...posteriors import hmm_filter
from ..case import OURS, Case, Contender, Draw, Prepared, Shape, join
from ..limits import Cost
from ..peers import posteriors as peers

BATCH, FEW = 4096, 32
LENGTHS = (20, 80, 320)


def cases() -> list[Case]:
    """Five states and five symbols, as in the tunnel, at three lengths."""
    made = []
    for length in LENGTHS:
        batch = BATCH * 20 // length
        results = batch * length * (5 + 5 + 1) + batch
        cost = Cost(
            4.0 * (batch * 50 + results) + 8.0 * batch * length, batch * length * 100.0, batch * length * (5.0 + 1.0)
        )
        made.append(
            Case(
                "hmm",
                "filter",
                {"batch": batch, "states": 5, "symbols": 5, "T": length},
                torch.float32,
                "tunnel",
                "sequences",
                batch,
                cost,
                2e-6,
                _prepare,
                {"batch": 64},
                "T",
            )
        )
    return made


def _prepare(draw: Draw, shape: Shape) -> Prepared:
    batch, states, symbols, length = (shape[name] for name in ("batch", "states", "symbols", "T"))
    p, e = draw.simplex(batch, states, states), draw.simplex(batch, states, symbols)
    seen = draw.integers(symbols, batch, length)
    few = min(FEW, batch)

    def ours() -> tuple[Tensor, ...]:
        found = hmm_filter(p, e, seen)
        return found.posterior, found.predictive, found.log_evidence, found.entropy

    contenders = {
        OURS: Contender(ours),
        "vectorised torch": Contender(lambda: peers.torch_filter(p, e, seen), looser=5.0),
    }
    missing: dict[str, str] = {}
    if draw.device.type == "cpu":
        join(contenders, missing, "dynamax", lambda: Contender(peers.dynamax_filter(p, e, seen), looser=20.0))
        join(contenders, missing, "hmmlearn", lambda: _hmmlearn(p, e, seen, few))
    return Prepared(contenders, lambda: peers.torch_filter(p.double(), e.double(), seen), missing)


def _hmmlearn(p: Tensor, e: Tensor, seen: Tensor, few: int) -> Contender:
    run = peers.hmmlearn_filter(p[:few], e[:few], seen[:few])
    return Contender(run, exact=lambda exact: (exact[2][:few],), share=few / len(seen), looser=20.0)
