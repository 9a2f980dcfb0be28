"""The fused training step of one attention head, loss and four gradients, beside plain autograd and padded SDPA.

The projections take 6 N Dx (2 Dk + Dv) multiplications and additions, the pairs of positions 7 N(N + 1)(Dk + Dv)/2 as
in attention, the readout 6 N Dv C.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops.single_head import single_head_step
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost

INPUTS, HEAD, VALUE, CLASSES = 20, 10, 15, 8


def cases() -> list[Case]:
    """The sticky chain's sizes at two lengths."""
    made = []
    for n, size in ((256, "tunnel"), (2000, "tunnel"), (1, "verify"), (40, "verify"), (257, "verify")):
        work = 6.0 * n * (INPUTS * (2 * HEAD + VALUE) + VALUE * CLASSES) + 3.5 * n * (n + 1) * (HEAD + VALUE)
        cost = Cost(4.0 * n * INPUTS + 8.0 * n, work, 1.0 * n * (n + 1))
        made.append(
            Case(
                "single_head", "training step", {"N": n, "Dx": INPUTS, "Dk": HEAD, "Dv": VALUE, "C": CLASSES},
                torch.float32, size, "steps", 1, cost, 2e-5, _prepare,
                results=("loss", "dw_q", "dw_k", "dw_v", "dw_out"),
            )
        )  # fmt: skip
    return made


def _prepare(draw: Draw, shape: Shape) -> Prepared:
    x, y = draw.normal(shape["N"], INPUTS), draw.integers(CLASSES, shape["N"])
    sizes = ((INPUTS, HEAD), (INPUTS, HEAD), (INPUTS, VALUE), (VALUE, CLASSES))
    weights = [(draw.normal(*size) * size[0] ** -0.5).requires_grad_() for size in sizes]

    def ours() -> tuple[Tensor, ...]:
        step = single_head_step(x, y, *(w.detach() for w in weights))
        return step.loss, *step[1:]

    contenders = {
        OURS: Contender(ours),
        "padded SDPA": Contender(lambda: padded(x, y, weights), looser=3.0),
        "plain autograd": Contender(lambda: plain(x, y, weights), looser=3.0),
    }
    exact = [w.detach().double().requires_grad_() for w in weights]
    return Prepared(contenders, lambda: plain(x.double(), y, exact))


def plain(x: Tensor, y: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    """The model as one writes it."""
    q, k, v = (x @ w for w in weights[:3])
    hidden = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
    scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(hidden, -torch.inf)
    loss = F.cross_entropy(torch.softmax(scores, -1) @ v @ weights[3], y)
    return loss, *torch.autograd.grad(loss, weights)


def padded(x: Tensor, y: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    """Heads padded to 16, so that torch takes its flash path: the fastest that it has."""
    q, k, v = (x @ w for w in weights[:3])
    scale, values = q.shape[1] ** -0.5, v.shape[1]
    q, k, v = (F.pad(t, (0, 16 - t.shape[1]))[None, None] for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[0, 0, :, :values]
    loss = F.cross_entropy(o @ weights[3], y)
    return loss, *torch.autograd.grad(loss, weights)
