"""Scores of predictions against the exact predictive, and the cross-entropies that models train on.

    scores = score(logits, predictive, targets)        loss, entropy, KL, TVD, … of every row in one pass
    losses = cross_entropy(logits, predictive=p)       differentiable in the logits: q Σp − p
The definitions are those of kernels/score/reference.py.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends import current, resolve
from ..kernels.score import native, reference
from ..kernels.score.reference import Scores

NATIVE_DTYPES = (torch.float32, torch.float64)


def score(logits: Tensor, predictive: Tensor, targets: Tensor) -> Scores:
    """Every score of every row; not differentiable.

    logits, predictive (…, C) of one floating dtype, which the results (…) keep; targets (…) int64 in [0, C).
    Raises ValueError for other shapes, IndexError for a target out of range.
    """
    _check(logits, predictive, targets)
    with torch.no_grad():
        if _natively(logits):
            return Scores(*native.score(logits, predictive, targets))
        if logits.dtype == torch.float32 and resolve("score", logits.device) == "triton":
            from ..kernels.score import forward

            # Rows that no program holds are the reference's, unless Triton is asked for by name: then it refuses.
            if logits.shape[-1] <= forward.MOST_CLASSES or current() == "triton":
                return forward.score(logits, predictive, targets)
        return reference.score(logits, predictive, targets)


def cross_entropy(logits: Tensor, *, predictive: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
    """Losses (…) in nats of logits (…, C): −Σ p ln q for predictive (…, C), or −ln q(target) for targets (…) int64.

    Exactly one of the two is given. Differentiable once in the logits; the predictive is a constant.
    """
    if (predictive is None) == (targets is None):
        raise ValueError("cross_entropy takes either predictive or targets")
    _check(logits, predictive, targets)
    if not _natively(logits):
        return reference.cross_entropy(logits, predictive, targets)
    if torch.is_grad_enabled() and logits.requires_grad:
        losses: Any = _CrossEntropy.apply(logits, predictive, targets)
        return losses
    return native.cross_entropy(logits, predictive, targets)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, predictive: Tensor | None, targets: Tensor | None) -> Tensor:
        ctx.save_for_backward(logits, predictive, targets)
        return native.cross_entropy(logits, predictive, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return native.cross_entropy_backward(upstream, *ctx.saved_tensors), None, None


def _natively(logits: Tensor) -> bool:
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return not transformed and logits.dtype in NATIVE_DTYPES and resolve("score", logits.device) == "cpu"


def _check(logits: Tensor, predictive: Tensor | None, targets: Tensor | None) -> None:
    if logits.dim() < 1 or logits.shape[-1] < 1:
        raise ValueError(f"logits must have shape (…, C) with C ≥ 1; got {tuple(logits.shape)}")
    if predictive is not None and (predictive.shape, predictive.dtype) != (logits.shape, logits.dtype):
        raise ValueError(
            f"predictive must have the shape and dtype of logits, {tuple(logits.shape)} {logits.dtype}; "
            f"got {tuple(predictive.shape)} {predictive.dtype}"
        )
    if targets is not None and (targets.shape, targets.dtype) != (logits.shape[:-1], torch.int64):
        raise ValueError(
            f"targets must be int64 of shape {tuple(logits.shape[:-1])}; got {targets.dtype} {tuple(targets.shape)}"
        )
