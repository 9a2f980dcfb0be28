"""Do states lie along one line, ordered by uncertainty?

Principal components of centred states; the share of variance along the first; the rank correlation (Spearman, ties
share their mean rank) of a state's place along it with the posterior entropy there. The sign of a component is
arbitrary, so the absolute correlation is given. participation = (Σ λ)² / Σ λ²: how many components matter, 1 for a
line.
Source: arXiv 2512.22471.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Manifold(NamedTuple):
    """first_share: variance along the first component, 0 to 1; spearman: 0 to 1; participation: 1 to d."""

    first_share: float
    spearman: float
    participation: float


def principal_components(states: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (n, r) along the components of states (n, d), and their shares of the variance (r,), largest first.

    ValueError for fewer than two states. Shares are 0 where all states are equal.
    """
    if states.dim() != 2 or len(states) < 2:
        raise ValueError(f"states must be (n, d) with n of at least 2; got {tuple(states.shape)}")
    centred = states.to(torch.float64) - states.to(torch.float64).mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    variances = s.square()
    total = variances.sum()
    return u * s, variances / total if total > 0 else torch.zeros_like(variances)


def manifold(states: Tensor, entropy: Tensor) -> Manifold:
    """How one-dimensional states (n, d) are, and how well that dimension orders entropy (n,).

    The correlation is NaN where the entropy, or the first component, does not vary.
    """
    scores, shares = principal_components(states)
    if entropy.shape != (len(states),):
        raise ValueError(f"entropy must be (n,) = ({len(states)},); got {tuple(entropy.shape)}")
    spread = float(shares.square().sum())
    return Manifold(
        float(shares[0]), abs(_spearman(scores[:, 0], entropy)), 1.0 / spread if spread > 0 else float("nan")
    )


def _spearman(a: Tensor, b: Tensor) -> float:
    from scipy.stats import rankdata

    ranks = [torch.from_numpy(rankdata(x.detach().cpu().to(torch.float64).numpy())) for x in (a, b)]
    centred = [r - r.mean() for r in ranks]
    norm = float(centred[0].norm() * centred[1].norm())
    return float(centred[0] @ centred[1]) / norm if norm > 0 else float("nan")
