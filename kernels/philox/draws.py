"""Discrete draws from random words, in integer arithmetic alone: every back end must give the same integers.

R rows, each with its own words, int64 in [0, 2³²).
"""

import torch
from torch import Tensor

from bayesattn_fast.kernels.philox.reference import below

FLOOR, TOTAL = 5, 100  # hundredths: the least entry, and the sum of a row


def shuffle(words: Tensor, n: int) -> Tensor:
    """Fisher–Yates from the front: words (R, take), take ≤ n; returns (R, n), a rearrangement of 0 … n − 1.

    For i = 0 … take − 1 entry i is exchanged with entry i + below(word i, n − i): the first `take` entries are a
    uniform ordered sample without replacement, the rest are what remains, in no particular order.
    """
    rows, take = words.shape
    items = torch.arange(n, device=words.device).repeat(rows, 1)
    for i in range(take):
        other = (i + below(words[:, i], n - i))[:, None]
        chosen = items.gather(1, other)
        items.scatter_(1, other, items[:, i : i + 1].clone())
        items[:, i : i + 1] = chosen
    return items


def categorical(values: Tensor, cumulative: Tensor) -> Tensor:
    """How many of the inner cumulative sums are ≤ value.

    values (…) in [0, W), cumulative (…, C) integer cumulative weights with last entry W. Returns (…) int64 in [0, C),
    class c with probability weight_c / W where values are uniform.
    """
    return (values[..., None] >= cumulative[..., :-1]).sum(-1)


def simplex_hundredths(words: Tensor) -> Tensor:
    """Rows of probabilities in hundredths, Dirichlet(1, …, 1) floored at 0.05: words (…, C − 1) to (…, C) int64.

    The spacings of the sorted words on [0, 2³²) are a uniform point of the simplex. Entries are raised to 0.05,
    renormalised and rounded to hundredths (half up); then the row is repaired to sum to 100 with every entry ≥ 5:
    what is missing goes to the smallest entries, one each, what is too much is taken from the largest above 5, one
    each, in rounds. Ties go to the lower index; the order is fixed before the repair.
    C ≤ 20, since 21 entries of 5 exceed 100.
    """
    edges = words.sort(-1).values
    zero = torch.zeros_like(edges[..., :1])
    # Scaled by 20, so that the floor 0.05 is a whole number too.
    gaps = 20 * torch.diff(edges, dim=-1, prepend=zero, append=zero + 2**32)
    floored = gaps.clamp_min(2**32)
    total = floored.sum(-1, keepdim=True)
    return repair((2 * TOTAL * floored + total) // (2 * total))


def repair(hundredths: Tensor) -> Tensor:
    """Hundredths (…, C) int64, C ≤ 20, to the nearest rows with every entry ≥ 5 and sum 100; see simplex_hundredths."""
    row = hundredths.clamp_min(FLOOR)
    ascending, descending = row.argsort(dim=-1, stable=True), (-row).argsort(dim=-1, stable=True)
    lack = TOTAL - row.sum(-1, keepdim=True)
    place = torch.arange(row.shape[-1], device=row.device)
    given = lack.clamp_min(0) // row.shape[-1] + (place < lack.clamp_min(0) % row.shape[-1])
    row = row.scatter_add(-1, ascending, given)
    surplus = (-lack).clamp_min(0)
    while bool(surplus.any()):  # a row above 100 ≥ 5·C has an entry above 5, so every round takes something
        able = (row > FLOOR).gather(-1, descending)
        taken = (able & (able.cumsum(-1) <= surplus)).to(torch.int64)
        row = row.scatter_add(-1, descending, -taken)
        surplus = surplus - taken.sum(-1, keepdim=True)
    return row
