"""H(p) = −Σ_c p_c log₂ p_c, with 0·log 0 = 0 (Shannon 1948)."""

import math

import torch
from torch import Tensor


def entropy_bits(p: Tensor) -> Tensor:
    """Entropy in bits of the distributions p (…, C): returns (…), the same dtype."""
    # clamp_min: a certain outcome would otherwise come out as −0.
    return (torch.special.entr(p).sum(-1) / math.log(2.0)).clamp_min(0.0)
