"""Where attention goes: how much of it lands on the evidence, and how well queries and relevant keys point together.

Shapes: any leading axes …, N queries or rows, M keys.
"""

import torch
from torch import Tensor


def pattern(queries: Tensor, keys: Tensor, *, causal: bool = True, scale: float | None = None) -> Tensor:
    """Attention weights (…, N, M) of queries (…, N, d) and keys (…, M, d); scale is 1/√d by default."""
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * queries @ keys.transpose(-1, -2)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1)


def attention_mass(weights: Tensor, relevant: Tensor) -> Tensor:
    """Share of each row's attention on its relevant positions, averaged over rows that have any, (…).

    weights (…, N, M) with rows that sum to 1; relevant (…, N, M) bool, or what broadcasts to it. NaN where no row has
    a relevant position.
    """
    relevant = relevant.expand_as(weights)
    has = relevant.any(-1)
    mass = (weights.to(torch.float64) * relevant).sum(-1)
    return (mass * has).sum(-1) / torch.where(has.any(-1), has.sum(-1), torch.nan)


def query_key_alignment(queries: Tensor, keys: Tensor, relevant: Tensor, *, visible: Tensor | None = None) -> Tensor:
    """Mean cosine of queries with their relevant keys minus that with their other visible ones, (…) float64.

    queries (…, N, d), keys (…, M, d), relevant (…, N, M) bool; visible likewise, everything by default. 0 where a
    query treats all keys alike, 2 at most. NaN where either kind of pair does not exist.
    """
    unit = [torch.nn.functional.normalize(x.to(torch.float64), dim=-1) for x in (queries, keys)]
    cosines = unit[0] @ unit[1].transpose(-1, -2)
    relevant = relevant.expand_as(cosines)
    others = ~relevant if visible is None else ~relevant & visible.expand_as(cosines)
    inside, outside = ((cosines * mask).sum((-1, -2)) / mask.sum((-1, -2)) for mask in (relevant, others))
    return inside - outside
