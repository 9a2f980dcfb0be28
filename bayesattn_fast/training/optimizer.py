"""Optimiser, learning-rate schedule and clipping of an ensemble: nothing mixes seeds."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from .config import TrainingConfig


def build(config: TrainingConfig, parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    """The optimiser, fused where torch has a fused version of it."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr)
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay, fused=True
    )


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Rate of the update that makes step `step` (counted from 0) into step + 1."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant" or config.steps <= config.warmup:
        return config.lr
    done = (step - config.warmup) / (config.steps - config.warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def gradient_norms(parameters: Sequence[Parameter]) -> Tensor:
    """Norm of each seed's gradient (E,)."""
    squares = [
        parameter.grad.reshape(len(parameter), -1).square().sum(1)
        for parameter in parameters
        if parameter.grad is not None
    ]
    return torch.stack(squares).sum(0).sqrt()


def scale_gradients(parameters: Sequence[Parameter], factors: Tensor) -> None:
    """Multiply each seed's gradient by its factor; 0 clears it even where it is not finite."""
    dead = factors == 0
    any_dead = bool(dead.any())
    for parameter in parameters:
        if parameter.grad is not None:
            shape = (-1, *[1] * (parameter.dim() - 1))
            parameter.grad.mul_(factors.view(shape))
            if any_dead:
                parameter.grad.masked_fill_(dead.view(shape), 0.0)
