"""Attention calls for the kernel tests, and every result of them by the dense formulas in float64."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.closeness import assert_close

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
NAMES = (
    "o lse entropy max_weight dq dk dv expected variance score_norm2 responsibility routing absolute_routing value_norm"
)


class Case(NamedTuple):
    """A call: q (B, H, n_q, d), k (B, H_kv, n_k, d), v (B, H_kv, n_k, d_v), masks, and what the gradients come from."""

    heads: tuple[int, int, int]
    n_q: int
    n_k: int
    d: int
    d_v: int
    causal: bool
    lengths: tuple[int, ...] | None = None
    query_lengths: tuple[int, ...] | None = None
    dlse: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "one of everything": Case((1, 1, 1), 1, 1, 1, 1, True),
    "causal, not a multiple of a tile": Case((1, 2, 2), 40, 40, 8, 8, True, dlse=True),
    "grouped heads, lengths, one sequence empty": Case((2, 4, 2), 33, 19, 12, 24, False, (17, 0), (20, 33), True),
    "causal, more keys than queries, lengths": Case((2, 2, 1), 19, 40, 24, 12, True, (17, 40), (19, 11)),
    "causal, more queries than keys": Case((1, 1, 1), 35, 18, 12, 8, True, dlse=True),
}


def draw(case: Case) -> dict[str, Tensor | None]:
    """Operands of a case, from a fixed seed."""
    b, h, h_kv = case.heads
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    operands = {
        "q": normal(b, h, case.n_q, case.d),
        "k": normal(b, h_kv, case.n_k, case.d),
        "v": normal(b, h_kv, case.n_k, case.d_v),
        "u": normal(b, h, case.n_q, case.d_v),
    }
    operands = {name: tensor.to(case.dtype) for name, tensor in operands.items()}
    operands["dlse"] = normal(b, h, case.n_q) if case.dlse else None
    return operands


def masks(case: Case, device: torch.device) -> dict[str, Tensor | None]:
    def counts(values: tuple[int, ...] | None) -> Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.int32, device=device)

    return {"lengths": counts(case.lengths), "query_lengths": counts(case.query_lengths)}


def visible(case: Case, device: torch.device) -> Tensor:
    """(B, 1, n_q, n_k) bool."""
    rows, keys = torch.arange(case.n_q, device=device)[:, None], torch.arange(case.n_k, device=device)
    seen = (keys <= rows) if case.causal else (keys >= 0) & (rows >= 0)
    seen = seen.expand(case.heads[0], 1, -1, -1)
    for counts, index in ((case.lengths, keys), (case.query_lengths, rows)):
        if counts is not None:
            seen = seen & (index < torch.tensor(counts, device=device)[:, None, None, None])
    return seen


def dense(operands: dict[str, Tensor | None], case: Case, scale: float) -> dict[str, Tensor]:
    """Every result by the formulas of the gradient, N_q × N_k at a time, in float64."""
    q, k, v, u = (operands[name].double() for name in "qkvu")
    (b, h, h_kv), group = case.heads, case.heads[1] // case.heads[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    seen = visible(case, q.device)
    score = torch.where(seen, scale * (q @ k.mT), -math.inf).expand(b, h, -1, -1)
    lse = score.logsumexp(-1)
    live = seen.any(-1, keepdim=True)
    weight = torch.where(live, (score - torch.where(live, lse[..., None], 0)).exp(), 0)
    compatibility = u @ v.mT
    expected = (weight * compatibility).sum(-1)
    centred = compatibility - expected[..., None]
    dlse = 0 if operands["dlse"] is None else operands["dlse"].double()[..., None]
    gradient = weight * (centred + dlse)
    own_dv = weight.mT @ u

    def gather(x: Tensor) -> Tensor:
        return x.unflatten(1, (h_kv, group)).sum(2)

    # −Σ α log α loses the digits of a nearly one-hot row even in float64: the largest term, exactly 1, is left out.
    argmax = score.argmax(-1, keepdim=True)
    shifted = torch.where(weight > 0, score - score.gather(-1, argmax), 0)
    rest = torch.where(weight > 0, shifted.exp(), 0).scatter(-1, argmax, 0.0).sum(-1)
    entropy = rest.log1p() - (weight * shifted).sum(-1)
    results = [weight @ v, lse, entropy, weight.amax(-1)]
    results += [scale * gradient @ k, gather(scale * gradient.mT @ q), gather(own_dv)]
    results += [expected, (weight * centred.square()).sum(-1), gradient.square().sum(-1)]
    results += [weight.sum(-2), gradient.sum(-2), gradient.abs().sum(-2), own_dv.norm(dim=-1)]
    runner_up = weight.scatter(-1, argmax, 0.0).amax(-1)
    argmax = torch.where(live[..., 0], argmax[..., 0], -1)
    return dict(zip(NAMES.split(), results, strict=True)) | {"argmax": argmax, "runner_up": runner_up}


def both_passes(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    operands: dict[str, Tensor | None],
    case: Case,
    scale: float,
    statistics: bool = True,
    tf32: bool = False,
) -> dict[str, Tensor]:
    """Forward, then backward: all results by name. Either may have its tiles bound already."""
    q, k, v, u = (operands[name] for name in "qkvu")
    common: dict[str, Any] = {"causal": case.causal, "scale": scale, "statistics": statistics, "tf32": tf32}
    common |= masks(case, q.device)
    there = forward(q, k, v, **common)
    back = backward(q, k, v, there.o, there.lse, u, dlse=operands["dlse"], **common)
    results = {**there._asdict(), "dq": back.dq, "dk": back.dk, "dv": back.dv}
    return results if not statistics else results | back.rows._asdict() | back.columns._asdict()


def compare(actual: dict[str, Tensor], exact: dict[str, Tensor], tolerance: float) -> None:
    """Every result against the exact one; argmax must be equal where no rounding can have made it a tie."""
    for quantity in NAMES.split():
        assert_close(actual[quantity], exact[quantity], tolerance, quantity)
    unequal = actual["argmax"] != exact["argmax"]
    assert (exact["max_weight"] - exact["runner_up"])[unequal].abs().lt(tolerance).all(), "argmax"
