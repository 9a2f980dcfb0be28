"""Causal attention, forward and backward: torch's fused op and matrices written out with autograd beside ours.

Multiplications and additions of one head: 2 N(N + 1) D forward, 5 N(N + 1) D backward, the scores made again in it;
N(N + 1)/2 exponentials each time. Inputs and results are read and written once.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops.attention import attention, attention_dynamics
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost

HEADS = 4
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
LOOSER = 5.0
"""torch keeps α in bfloat16 inside."""
TUNNEL = ((1024, 40, 32), (4096, 40, 16), (1024, 128, 32))
LLM = ((16, 1024, 64), (8, 2048, 128))
CURVE = (10, 20, 40, 80, 160, 320, 640)
CURVE_POSITIONS = 20_480
TIMED = (torch.float32, torch.bfloat16)
VERIFY = ((8, 1, 8), (8, 40, 32), (8, 150, 24))
"""A single position, one tile of keys, several tiles with a remainder."""
GRADIENTS = ("o", "dq", "dk", "dv")
STATISTICS = (
    "lse", "entropy", "largest weight", "expected compatibility", "its variance", "score gradient's square",
    "responsibility", "routing", "absolute routing", "value gradient's norm",
)  # fmt: skip

Operands = tuple[Tensor, Tensor, Tensor]


def cases() -> list[Case]:
    """Gradients at the sizes of tunnels and of language models, with and without statistics, and over lengths."""
    made = [_gradients(*shape, dtype, "tunnel") for shape in TUNNEL for dtype in TIMED]
    made += [_statistics(*shape, torch.float32, "tunnel") for shape in TUNNEL[:2]]
    made += [_gradients(*shape, dtype, "llm") for shape in LLM for dtype in TIMED]
    made += [_gradients(CURVE_POSITIONS // n // HEADS * HEADS, n, 32, torch.float32, "curve", curve="N") for n in CURVE]
    for dtype in TOLERANCE:
        made += [of(*shape, dtype, "verify") for of in (_gradients, _statistics) for shape in VERIFY]
    return made


def _cost(heads: int, n: int, d: int, dtype: torch.dtype, tensors: int) -> Cost:
    pairs = heads * n * (n + 1)
    return Cost(tensors * heads * n * d * dtype.itemsize, 7.0 * pairs * d, 1.0 * pairs)


def _gradients(heads: int, n: int, d: int, dtype: torch.dtype, size: str, curve: str = "") -> Case:
    return Case(
        "attention", "forward + backward", {"heads": heads, "N": n, "D": d}, dtype, size, "positions", heads * n,
        _cost(heads, n, d, dtype, 12), TOLERANCE[dtype], _prepare_gradients, {"heads": HEADS}, curve, results=GRADIENTS,
    )  # fmt: skip


def _statistics(heads: int, n: int, d: int, dtype: torch.dtype, size: str) -> Case:
    return Case(
        "attention", "gradients and their terms", {"heads": heads, "N": n, "D": d}, dtype, size, "positions", heads * n,
        _cost(heads, n, d, dtype, 12) + Cost(4.0 * len(STATISTICS) * heads * n), max(2e-5, TOLERANCE[dtype]),
        _prepare_statistics, {"heads": HEADS}, results=(*GRADIENTS, *STATISTICS),
    )  # fmt: skip


def _operands(draw: Draw, shape: Shape) -> tuple[Operands, Tensor]:
    """q, k, v that require gradients, and the upstream gradient."""
    sizes = shape["heads"] // HEADS, HEADS, shape["N"], shape["D"]
    q, k, v, u = (draw.normal(*sizes) for _ in range(4))
    return (q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), u


def _in_float64(qkv: Operands, u: Tensor) -> tuple[Operands, Tensor]:
    q, k, v = (x.detach().double().requires_grad_() for x in qkv)
    return (q, k, v), u.double()


def _prepare_gradients(draw: Draw, shape: Shape) -> Prepared:
    qkv, u = _operands(draw, shape)

    def through(attend: Callable[[Tensor, Tensor, Tensor], Tensor], qkv: Operands, u: Tensor) -> tuple[Tensor, ...]:
        o = attend(*qkv)
        return (o, *torch.autograd.grad(o, qkv, u))

    contenders = {
        OURS: Contender(lambda: through(attention, qkv, u)),
        "torch SDPA": Contender(lambda: through(fused, qkv, u), looser=LOOSER),
        "dense autograd": Contender(lambda: through(dense, qkv, u), looser=LOOSER),
    }
    return Prepared(contenders, lambda: through(dense, *_in_float64(qkv, u)))


def _prepare_statistics(draw: Draw, shape: Shape) -> Prepared:
    qkv, u = _operands(draw, shape)

    def ours() -> tuple[Tensor, ...]:
        d = attention_dynamics(*qkv, u)
        return d.o, d.dq, d.dk, d.dv, *d.forward[:3], *d.rows, *d.columns

    contenders = {OURS: Contender(ours), "dense autograd": Contender(lambda: dense_terms(qkv, u))}
    return Prepared(contenders, lambda: dense_terms(*_in_float64(qkv, u)))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own op."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Matrices written out."""
    return _scores(q, k).softmax(-1) @ v


def _scores(q: Tensor, k: Tensor) -> Tensor:
    length = q.shape[2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(hidden, -math.inf)


def dense_terms(qkv: Operands, u: Tensor) -> tuple[Tensor, ...]:
    """Gradients by autograd and every statistic from the matrices, in the order in which ours returns them."""
    q, k, v = qkv
    score = _scores(q, k)
    weight = score.softmax(-1)
    o = weight @ v
    score_gradient, dq, dk, dv = torch.autograd.grad(o, (score, q, k, v), u)
    with torch.no_grad():
        lse = score.logsumexp(-1)
        entropy = lse - (weight * score.masked_fill(score == -math.inf, 0)).sum(-1)
        compatibility = u @ v.mT
        expected = (weight * compatibility).sum(-1)
        variance = (weight * (compatibility - expected[..., None]).square()).sum(-1)
        rows = expected, variance, score_gradient.square().sum(-1)
        columns = weight.sum(-2), score_gradient.sum(-2), score_gradient.abs().sum(-2), dv.norm(dim=-1)
        return o, dq, dk, dv, lse, entropy, weight.amax(-1), *rows, *columns
