"""Scores of predictions against the exact predictive, and the loss they train on, beside torch.

A class takes an exponential for the scores and about four logarithms; the loss an exponential forward and backward.
"""

import torch
from torch import Tensor

from ...ops.score import cross_entropy, score
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost
from ..peers import posteriors as peers

VERIFY = ((5, 2, "verify"), (97, 20, "verify"), (33, 1000, "verify"), (9, 8000, "verify"))


def cases() -> list[Case]:
    """A batch of the bijection tunnel for the scores, a large one for the loss; and a language model's alphabet."""
    made = []
    for rows, classes, size in ((64 * 19, 20, "tunnel"), (4096 * 19, 20, "tunnel"), (2048, 32_000, "llm"), *VERIFY):
        count = rows * classes
        shape = {"rows": rows, "C": classes}
        made += [
            Case(
                "score", "scores", shape, torch.float32, size, "rows", rows,
                Cost(8.0 * count + 28.0 * rows, 10.0 * count, 4.0 * count), 1e-5, _prepare_scores, {"rows": 64},
                results=("loss", "entropy", "KL", "TVD"),
            ),
            Case(
                "score", "loss, forward + backward", shape, torch.float32, size, "rows", rows,
                Cost(16.0 * count + 8.0 * rows, 4.0 * count, 2.0 * count), 2e-6, _prepare_loss, {"rows": 64},
                results=("loss", "dlogits"),
            ),
        ]  # fmt: skip
    return made


def _prepare_scores(draw: Draw, shape: Shape) -> Prepared:
    x, p = draw.normal(shape["rows"], shape["C"]), draw.normal(shape["rows"], shape["C"]).softmax(-1)
    y = draw.integers(shape["C"], shape["rows"])

    def ours() -> tuple[Tensor, ...]:
        found = score(x, p, y)
        return found.loss, found.entropy_bits, found.kl, found.tvd

    contenders = {OURS: Contender(ours), "torch": Contender(lambda: peers.torch_scores(x, p), looser=5.0)}
    return Prepared(contenders, lambda: peers.torch_scores(x.double(), p.double()))


def _prepare_loss(draw: Draw, shape: Shape) -> Prepared:
    x, p = draw.normal(shape["rows"], shape["C"]).requires_grad_(), draw.normal(shape["rows"], shape["C"]).softmax(-1)

    def through(losses: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return losses, *torch.autograd.grad(losses.sum(), x)

    def plain(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        return through(-(p * x.log_softmax(-1)).sum(-1), x)

    contenders = {
        OURS: Contender(lambda: through(cross_entropy(x, predictive=p), x)),
        "torch": Contender(lambda: plain(x, p), looser=3.0),
    }
    return Prepared(contenders, lambda: plain(x.detach().double().requires_grad_(), p.double()))
