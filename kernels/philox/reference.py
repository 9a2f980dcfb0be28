"""Philox4x32-10: four 32-bit words from a 128-bit counter and a 64-bit key, with no state to carry.

One round maps (c0, c1, c2, c3) with key (k0, k1) to
    (hi(M1·c2) ^ c1 ^ k0,  lo(M1·c2),  hi(M0·c0) ^ c3 ^ k1,  lo(M0·c0)),
after which the key advances by (W0, W1); ten rounds. Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers:
as easy as 1, 2, 3", section 3.3 and table 2.

Words are uint32 held in int64 tensors. Everything here is integer arithmetic, or +, −, ×, ÷ and √ of float64 without
fused multiply-add, so that other back ends can give the same bits.
"""

import math

import torch
from torch import Tensor

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85  # golden ratio and √3 − 1: the Weyl sequence of the keys
ROUNDS = 10
LOW = 0xFFFFFFFF


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Ten rounds of Philox4x32.

    counter (…, 4) and key (…, 2), int64 in [0, 2³²), leading shapes broadcast together; returns (…, 4), the same kind.
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for _ in range(ROUNDS):
        # int64 products wrap modulo 2⁶⁴, which leaves all 64 bits of the unsigned product in place.
        even, odd = c0 * M0, c2 * M1
        c0, c2 = (odd >> 32) & LOW ^ c1 ^ k0, (even >> 32) & LOW ^ c3 ^ k1
        c1, c3 = odd & LOW, even & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1)


def random_words(seeds: Tensor, stream: int, step: int, sequences: Tensor, count: int) -> Tensor:
    """The first `count` words of the draw that (seed, stream, step, sequence) names.

    seeds (R,) int64 ≥ 0; sequences (R,) int64, stream and step in [0, 2³²). Returns (R, count) int64 in [0, 2³²).
    Key = (low, high 32 bits of the seed), counter = (block, sequence, step, stream); word w is output w % 4 of block
    w // 4, so that a longer draw begins with the shorter one.
    """
    blocks = torch.arange(-(-count // 4), device=seeds.device)
    counter = torch.empty(len(seeds), len(blocks), 4, dtype=torch.int64, device=seeds.device)
    counter[..., 0] = blocks
    counter[..., 1] = sequences[:, None]
    counter[..., 2] = step
    counter[..., 3] = stream
    key = torch.stack([seeds & LOW, (seeds >> 32) & LOW], -1)[:, None]
    return philox(counter, key).flatten(1)[:, :count]


def uniform(words: Tensor) -> Tensor:
    """((w >> 9) + ½)·2⁻²³: float64 strictly between 0 and 1, exact in float32 too. Any shape."""
    return ((words >> 9).to(torch.float64) + 0.5) * 2.0**-23


def below(words: Tensor, n: Tensor | int) -> Tensor:
    """(w·n) >> 32: integers in [0, n), n < 2³¹, each with probability 1/n up to 2⁻³². Any shape."""
    return (words * n) >> 32


def normal(words: Tensor) -> Tensor:
    """Standard normals by Box–Muller: words (…, 2m) to float64 (…, 2m).

    Words 2i and 2i + 1 give u and t, and normals 2i and 2i + 1 are √(−2 ln u)·(cos 2πt, sin 2πt). The logarithm and
    the circle are evaluated here by fixed polynomials, since libraries differ in their last bits.
    """
    u, t = uniform(words.unflatten(-1, (-1, 2))).unbind(-1)
    radius = torch.sqrt(-2.0 * _log(u))
    cosine, sine = _circle(t)
    return torch.stack([radius * cosine, radius * sine], -1).flatten(-2)


def _horner(z: Tensor, coefficients: list[float]) -> Tensor:
    """Σ_k coefficients[k]·z^k, from the highest power down."""
    total = torch.full_like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total.mul_(z).add_(c)
    return total


def _log(u: Tensor) -> Tensor:
    """ln u = e·ln 2 + 2 artanh((m − 1)/(m + 1)) for u = m·2^e, √½ ≤ m < √2; eleven terms reach float64."""
    mantissa, exponent = torch.frexp(u)
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, 2.0 * mantissa, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner(s * s, [2.0 / (2 * k + 1) for k in range(11)])
    return (exponent - small.to(exponent.dtype)).to(torch.float64) * math.log(2.0) + s * series


def _circle(t: Tensor) -> tuple[Tensor, Tensor]:
    """cos 2πt and sin 2πt for t in (0, 1): Taylor within an eighth turn of the nearest quarter."""
    quarter = torch.floor(4.0 * t + 0.5)
    angle = (2.0 * math.pi) * (t - 0.25 * quarter)  # the difference is exact
    z = angle * angle
    c = _horner(z, [(-1) ** k / math.factorial(2 * k) for k in range(9)])
    s = angle * _horner(z, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)])
    turn = quarter.to(torch.int64) & 3
    swap = (turn & 1).bool()
    cosine, sine = torch.where(swap, s, c), torch.where(swap, c, s)
    return torch.where((turn == 1) | (turn == 2), -cosine, cosine), torch.where(turn >= 2, -sine, sine)
