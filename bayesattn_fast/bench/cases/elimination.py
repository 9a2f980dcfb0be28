"""Predictive of a bijection before every pair, beside a cumulative count in torch. Nothing but memory limits it.

For correctness alone also that of associative recall, and the samplers of both tunnels.
"""

import torch
from torch import Tensor

from ...posteriors import bijection_predictive, recall_predictive
from ...tunnels import Bijection, Recall
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..draws import draw_cases
from ..limits import Cost
from ..peers import posteriors as peers

TOLERANCE = 1e-6
FIELDS = ("predictive", "entropy")


def cases() -> list[Case]:
    """The tunnel's own size."""
    made = [_bijection(4096, 19, 20, "tunnel")]
    made += [_bijection(*shape, "verify") for shape in ((5, 1, 2), (64, 19, 20))]
    made += [_recall(*shape) for shape in ((5, 1, 3, 2), (16, 33, 70, 40))]
    return made + draw_cases("elimination", Bijection()) + draw_cases("elimination", Recall(pairs=8, symbols=32))


def _bijection(batch: int, pairs: int, symbols: int, size: str) -> Case:
    cost = Cost(8.0 * batch * pairs * 2 + 4.0 * batch * (pairs * (symbols + 1) + 1))
    shape = {"batch": batch, "pairs": pairs, "V": symbols}
    work = "bijection predictive"
    return Case(
        "elimination", work, shape, torch.float32, size, "sequences", batch, cost, TOLERANCE, _prepare, results=FIELDS
    )


def _recall(batch: int, pairs: int, symbols: int, queries: int) -> Case:
    cost = Cost(8.0 * batch * (2 * pairs + queries) + 4.0 * batch * queries * (symbols + 1))
    shape = {"batch": batch, "pairs": pairs, "V": symbols, "queries": queries}
    return Case(
        "elimination", "recall predictive", shape, torch.float32, "verify", "sequences", batch, cost, TOLERANCE,
        _prepare_recall, results=FIELDS,
    )  # fmt: skip


def _prepare(draw: Draw, shape: Shape) -> Prepared:
    batch, pairs, symbols = shape["batch"], shape["pairs"], shape["V"]
    keys, values = (draw.normal(batch, symbols).argsort(1)[:, :pairs] for _ in range(2))

    def ours() -> tuple[Tensor, ...]:
        found = bijection_predictive(keys, values, symbols, dtype=torch.float32)
        return found.predictive, found.entropy

    contenders = {
        OURS: Contender(ours),
        "vectorised torch": Contender(lambda: peers.torch_eliminations(values, symbols, torch.float32)),
    }
    return Prepared(contenders, lambda: peers.torch_eliminations(values, symbols, torch.float64))


def _prepare_recall(draw: Draw, shape: Shape) -> Prepared:
    """Some of the queries are for keys that were never stored."""
    batch, pairs, symbols = shape["batch"], shape["pairs"], shape["V"]
    keys, values = (draw.normal(batch, symbols).argsort(1)[:, :pairs] for _ in range(2))
    queries = draw.integers(symbols, batch, shape["queries"])

    def ours() -> tuple[Tensor, ...]:
        return tuple(recall_predictive(keys, values, queries, symbols, dtype=torch.float32))

    return Prepared({OURS: Contender(ours)}, lambda: peers.torch_recall(keys, values, queries, symbols, torch.float64))
