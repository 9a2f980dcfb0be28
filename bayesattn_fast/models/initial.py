"""Initial weights as a pure function of (seed, name of the parameter, shape).

A seed therefore starts the same whether it is trained alone or packed with others, and adding a layer does not
change the draws of the rest.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesattn_fast.kernels.philox.reference import normal, random_words, uniform
from bayesattn_fast.tunnels.protocol import Stream


def _words(seeds: Sequence[int], name: str, count: int) -> Tensor:
    """Words (E, count) of the weights stream; the parameter's name picks the counter."""
    keys = torch.tensor(list(seeds), dtype=torch.int64)
    label = torch.full_like(keys, zlib.crc32(name.encode()))
    return random_words(keys, int(Stream.WEIGHTS), 0, label, count)


def normal_weights(seeds: Sequence[int], name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """Weights (E, *shape) float32 from N(0, std²)."""
    count = 1
    for size in shape:
        count *= size
    words = _words(seeds, name, 2 * ((count + 1) // 2))
    return (std * normal(words)[:, :count]).float().reshape(len(seeds), *shape)


def uniform_weights(seeds: Sequence[int], name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
    """Weights (E, *shape) float32 uniform in (low, high)."""
    count = 1
    for size in shape:
        count *= size
    return (low + (high - low) * uniform(_words(seeds, name, count))).float().reshape(len(seeds), *shape)


def sinusoids(rows: int, width: int) -> Tensor:
    """Waves (rows, width) whose lengths grow geometrically, as in Vaswani et al. (2017, section 3.5).

    A learned table of positions that starts here lets one linear map mean "k places back" everywhere; from small
    random numbers each place learns that for itself, and associative recall stays on its plateau.
    """
    place = torch.arange(rows, dtype=torch.float64)[:, None]
    rate = float(max(rows, 2)) ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([torch.sin(place * rate), torch.cos(place * rate)], -1).flatten(1)[:, :width].float()
