"""Optimiser, learning-rate schedule and clipping of an ensemble: nothing mixes seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..models import SequenceModel, value_rows
from .config import TrainingConfig


class EMDescent(torch.optim.Optimizer):
    """Gradient descent with attention values at `ratio` times the rate of everything else.

    Gradient Dynamics of Attention, arXiv 2512.22473: responsibilities, the E-step, follow queries and keys slowly; the
    prototypes that they weight, the M-step, follow values fast. `values` names the rows of each parameter, on the axis
    after the seeds, that make values: fused projections hold queries and keys in their other rows.
    """

    def __init__(self, named: Mapping[str, Parameter], values: Mapping[str, slice], lr: float, ratio: float) -> None:
        if missing := [name for name in values if name not in named]:
            raise ValueError(f"values must name parameters that are trained; got {', '.join(missing)}")
        fast = [{"params": [named[name]], "values": rows} for name, rows in values.items()]
        slow = [parameter for name, parameter in named.items() if name not in values]
        groups: list[dict[str, Any]] = [{"params": slow, "values": slice(0, 0)}, *fast]
        super().__init__([group for group in groups if group["params"]], {"lr": lr, "ratio": ratio})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient. ValueError for a closure."""
        if closure is not None:
            raise ValueError("closure must be None: EMDescent evaluates no loss of its own")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _descend(parameter, parameter.grad, group["values"], group["lr"], group["ratio"])


def _descend(parameter: Tensor, gradient: Tensor, values: slice, lr: float, ratio: float) -> None:
    if values == slice(0, 0):
        parameter.add_(gradient, alpha=-lr)
        return
    for rows, rate in (
        (slice(0, values.start), lr),
        (values, ratio * lr),
        (slice(values.stop, parameter.shape[1]), lr),
    ):
        parameter[:, rows].add_(gradient[:, rows], alpha=-rate)


def build(config: TrainingConfig, model: SequenceModel) -> torch.optim.Optimizer:
    """The optimiser, fused where torch has a fused version of it.

    ValueError for optimizer em and a model that has no attention values.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    parameters = list(trained.values())
    if config.optimizer == "em":
        values = value_rows(model)
        if not values:
            raise ValueError(
                f"optimizer em moves attention values faster, so model must be transformer; got {model.config.model}, "
                "which has none (adamw and sgd train it)"
            )
        return EMDescent(trained, values, config.lr, config.value_lr_ratio)
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
    # On a GPU the question would wait for the device, which a captured step must not.
    any_dead = factors.is_cuda or bool(dead.any())
    for parameter in parameters:
        if parameter.grad is not None:
            shape = (-1, *[1] * (parameter.dim() - 1))
            parameter.grad.mul_(factors.view(shape))
            if any_dead:
                parameter.grad.masked_fill_(dead.view(shape), 0.0)
