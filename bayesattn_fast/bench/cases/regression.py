"""Predictive of Bayesian linear regression after every pair, as a density and over bins, beside a solve a position.

A pair takes about 6 d² multiplications and additions; each bin one evaluation of the error function, counted as one
exponential, and one logarithm for the entropy.
"""

import torch

from ...kernels.regression.reference import bin_edges, half_range
from ...posteriors import regression_predictive
from ...tunnels import Regression
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..draws import draw_cases
from ..limits import Cost
from ..peers import posteriors as peers

TAU, SIGMA, BINS = 1.0, 0.5, 64


def cases() -> list[Case]:
    """Two numbers of weights; for correctness alone also the sampler."""
    made = [_case(1024, 32, 4, "tunnel"), _case(512, 40, 8, "tunnel")]
    made += [_case(*shape, "verify") for shape in ((3, 1, 1), (64, 32, 4), (16, 41, 9))]
    return made + draw_cases("regression", Regression(pairs=16))


def _case(batch: int, length: int, d: int, size: str) -> Case:
    pairs = batch * length
    cost = Cost(4.0 * pairs * (d + 1 + BINS + 3), 6.0 * pairs * d * d, 2.0 * pairs * BINS)
    return Case(
        "regression", "predictive", {"batch": batch, "L": length, "d": d}, torch.float32, size, "sequences", batch,
        cost, 2e-5, _prepare, {"batch": 64}, results=("mean", "variance", "predictive", "entropy"),
    )  # fmt: skip


def _prepare(draw: Draw, shape: Shape) -> Prepared:
    batch, length, d = shape["batch"], shape["L"], shape["d"]
    x = draw.normal(batch, length, d)
    # Drawn from the model: pairs that contradict it would put the answers into the tails.
    weights, noise = draw.normal(batch, 1, d), draw.normal(batch, length)
    y = (weights * x).sum(-1) + SIGMA * noise
    edges = torch.tensor(bin_edges(BINS, half_range(d, TAU, SIGMA)), dtype=torch.float64, device=x.device)

    def ours() -> tuple[torch.Tensor, ...]:
        found = regression_predictive(x, y, tau=TAU, sigma=SIGMA, bins=BINS)
        return found.mean, found.variance, found.predictive, found.entropy

    contenders = {
        OURS: Contender(ours),
        "torch, a solve each": Contender(lambda: peers.torch_regression(x, y, TAU, SIGMA, edges.to(x)), looser=5.0),
    }
    return Prepared(contenders, lambda: peers.torch_regression(x.double(), y.double(), TAU, SIGMA, edges))
