"""Key orthogonality: do the keys of different hypotheses point in different directions?

    mean over i ≠ j of |k_i · k_j| / (|k_i| |k_j|)

0 for orthogonal keys, 1 for parallel ones. In d dimensions random directions have √(2 / (π d)) when d is large, so a
value means something only beside that of random keys of the same number and size. Source: arXiv 2512.22471.
"""

import torch
from torch import Tensor


def key_orthogonality(keys: Tensor) -> Tensor:
    """Mean |cosine| between different rows of keys (…, n, d), (…) float64.

    ValueError for fewer than two keys. A key of length 0 has cosine 0 with every other.
    """
    if keys.dim() < 2 or keys.shape[-2] < 2:
        raise ValueError(f"keys must be (…, n, d) with n of at least 2; got {tuple(keys.shape)}")
    unit = torch.nn.functional.normalize(keys.to(torch.float64), dim=-1)
    cosines = (unit @ unit.transpose(-1, -2)).abs()
    n = keys.shape[-2]
    return (cosines.sum((-1, -2)) - cosines.diagonal(dim1=-2, dim2=-1).sum(-1)) / (n * (n - 1))


def random_orthogonality(count: int, size: int, *, draws: int = 1000, seed: int = 0) -> float:
    """The same of `count` random directions in `size` dimensions, averaged over draws."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(draws, count, size, generator=generator, dtype=torch.float64)
    return float(key_orthogonality(keys).mean())
