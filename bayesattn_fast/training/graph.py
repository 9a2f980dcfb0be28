"""Forward, backward and clipping of an ensemble's step as one CUDA graph: a launch where there were hundreds.

Small models leave a GPU waiting for its host; a graph is replayed without it. The optimiser's fused step follows
outside, because it is skipped for seeds that diverged, which the host decides.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from ..tunnels.protocol import Batch

Compute = Callable[[Batch], tuple[Tensor, Tensor]]
WARM_UP = 3
"""Eager passes before the capture: they compile kernels and let libraries choose theirs, which a graph cannot hold."""


class GradientGraph:
    """`compute` captured at the shapes of one batch; it leaves gradients in `parameters`."""

    def __init__(self, compute: Compute, batch: Batch, parameters: Sequence[Parameter]) -> None:
        self.parameters = parameters
        self.batch = replace(batch, **{name: tensor.clone() for name, tensor in _tensors(batch).items()})
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                compute(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = compute(self.batch)
        self.gradients = [parameter.grad for parameter in parameters]

    @classmethod
    def capture(
        cls, compute: Compute, batch: Batch, parameters: Sequence[Parameter]
    ) -> "GradientGraph | Literal[False]":
        """The graph, or False with a warning where something in `compute` cannot be captured."""
        try:
            return cls(compute, batch, parameters)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"this model's step cannot be captured in a CUDA graph and runs without: {reason}", stacklevel=2
            )
            torch.cuda.synchronize()
            return False

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Results of `compute(batch)`, copies that later replays leave alone."""
        for name, tensor in _tensors(batch).items():
            getattr(self.batch, name).copy_(tensor)
        self.graph.replay()
        # An eager step in between has put others in their place.
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        losses, norms = self.results
        return losses.clone(), norms.clone()


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)}
