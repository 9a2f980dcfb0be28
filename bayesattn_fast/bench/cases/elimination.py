"""Predictive of a bijection before every pair, beside a cumulative count in torch. Nothing but memory limits it."""

import torch
from torch import Tensor

from ...posteriors import bijection_predictive
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost
from ..peers import posteriors as peers


def cases() -> list[Case]:
    """The tunnel's own size."""
    batch, pairs, symbols = 4096, 19, 20
    cost = Cost(8.0 * batch * pairs * 2 + 4.0 * batch * (pairs * (symbols + 1) + 1))
    shape = {"batch": batch, "pairs": pairs, "V": symbols}
    work = "bijection predictive"
    return [Case("elimination", work, shape, torch.float32, "tunnel", "sequences", batch, cost, 1e-6, _prepare)]


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
