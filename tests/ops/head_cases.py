"""Single heads to test with: the model as one would write it, operands of any size, a problem that can be learnt."""

import torch
import torch.nn.functional as F
from torch import Tensor


def plain_loss(q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, causal: bool, scale: float) -> Tensor:
    """The model as one would write it: cross-entropy by torch, one loss a seed."""
    scores = scale * torch.einsum("ebid,ebjd->ebij", q, k)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    logits = torch.softmax(scores, -1) @ v @ w_out[:, None]
    if targets.dim() == 4:
        return -(targets * torch.log_softmax(logits, -1)).sum(-1).mean((1, 2))
    losses = [F.cross_entropy(z.flatten(0, 1), y.flatten()) for z, y in zip(logits, targets, strict=True)]
    return torch.stack(losses)


def draw(seeds: int, batch: int, length: int, head: int, values: int, classes: int, soft: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * length + 10 * head + values)
    shapes = [(seeds, batch, length, head)] * 2 + [(seeds, batch, length, values), (seeds, values, classes)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    if soft:
        return [*tensors, torch.rand(seeds, batch, length, classes, generator=generator)]
    return [*tensors, torch.randint(classes, (seeds, batch, length), generator=generator)]


def in_float64(tensors: list[Tensor]) -> list[Tensor]:
    return [t.double() if t.is_floating_point() else t for t in tensors]


def problem(seeds: int, length: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs that tell the target, and weights N(0, 0.1²), as in the sticky-chain experiment."""
    generator = torch.Generator().manual_seed(7)
    means = torch.randn(8, 20, generator=generator)
    targets = torch.randint(8, (seeds, length), generator=generator)
    x = means[targets] + torch.randn(seeds, length, 20, generator=generator)
    shapes = [(20, 10), (20, 10), (20, 15), (15, 8)]
    return x, targets, [0.1 * torch.randn(seeds, *shape, generator=generator) for shape in shapes]
