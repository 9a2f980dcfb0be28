"""The random numbers under all draws: Random123's published vectors, and the same words as on the CPU, bit for bit.

Words are compared as they are: a relative error of 0 is equality.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...kernels.philox.reference import normal, philox, random_words
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost

# Random123 1.x, examples/kat_vectors, philox4x32-10: counter, key, answer.
PUBLISHED = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def cases() -> list[Case]:
    """Correctness alone: draws are timed as part of training."""
    return [
        _case("published vectors", {"vectors": len(PUBLISHED)}, _prepare_published, ("words",)),
        _case("words and normals, bit for bit", {"rows": 64, "words": 50}, _prepare_words, ("words", "normals")),
    ]


def _case(work: str, shape: Shape, prepare: Callable[[Draw, Shape], Prepared], results: tuple[str, ...]) -> Case:
    return Case("philox", work, shape, torch.float32, "verify", "words", 0, Cost(0.0), 0.0, prepare, results=results)


def _prepare_published(draw: Draw, shape: Shape) -> Prepared:
    counters, keys, answers = (torch.tensor(rows) for rows in zip(*PUBLISHED, strict=True))
    ours = Contender(lambda: philox(counters.to(draw.device), keys.to(draw.device)))
    return Prepared({OURS: ours}, lambda: (answers,))


def _prepare_words(draw: Draw, shape: Shape) -> Prepared:
    seeds, sequences = draw.integers(2**62, shape["rows"]), draw.integers(2**32, shape["rows"])

    def words(device: torch.device) -> tuple[Tensor, ...]:
        made = random_words(seeds.to(device), 1, 2**32 - 1, sequences.to(device), shape["words"])
        return made, normal(made)

    return Prepared({OURS: Contender(lambda: words(draw.device))}, lambda: words(torch.device("cpu")))
