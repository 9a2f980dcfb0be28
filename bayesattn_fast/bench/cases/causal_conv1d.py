"""Causal depthwise convolution with SiLU, forward and backward, beside torch's conv1d, in both memory layouts.

A position takes 2 W multiplications and additions forward and 4 W backward, and an exponential each time.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops.causal_conv1d import causal_conv1d_fn
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost

WIDTH = 4
LAYOUTS = ("channel-first", "channel-last")
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
VERIFY = ((2, 20, 1), (3, 20, 70))


def cases() -> list[Case]:
    """The sizes of a Mamba block of a tunnel, and of a language model."""
    made = [_case(64, 256, 128, layout, torch.float32, "tunnel") for layout in LAYOUTS]
    made.append(_case(4, 1536, 1024, "channel-last", torch.float32, "llm"))
    for dtype in TOLERANCE:
        made += [_case(*shape, layout, dtype, "verify") for layout in LAYOUTS for shape in VERIFY]
    return made


def _case(batch: int, channels: int, length: int, layout: str, dtype: torch.dtype, size: str) -> Case:
    count = batch * channels * length
    return Case(
        "causal_conv1d", f"forward + backward, {layout}", {"batch": batch, "channels": channels, "L": length},
        dtype, size, "positions", batch * length,
        Cost(5.0 * dtype.itemsize * count, 6.0 * WIDTH * count, 2.0 * count), TOLERANCE[dtype],
        lambda draw, shape: _prepare(draw, shape, layout), {"batch": 2}, results=("y", "dx", "dweight", "dbias"),
    )  # fmt: skip


def _prepare(draw: Draw, shape: Shape, layout: str) -> Prepared:
    batch, channels, length = shape["batch"], shape["channels"], shape["L"]
    last = layout == "channel-last"
    x = draw.normal(batch, length, channels).transpose(1, 2) if last else draw.normal(batch, channels, length)
    weight, bias, upstream = draw.normal(channels, WIDTH), draw.normal(channels), torch.empty_like(x)
    upstream.copy_(draw.normal(batch, channels, length))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def through(convolve: Callable[..., Tensor], leaves: list[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
        out = convolve(*leaves)
        return (out, *torch.autograd.grad(out, leaves, upstream))

    exact = [t.detach().double().requires_grad_() for t in leaves]
    contenders = {
        OURS: Contender(lambda: through(ours, leaves, upstream)),
        "torch conv1d": Contender(lambda: through(plain, leaves, upstream), looser=3.0),
    }
    return Prepared(contenders, lambda: through(plain, exact, upstream.double()))


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The op with causal-conv1d's signature."""
    out = causal_conv1d_fn(x, weight, bias, activation="silu")
    assert isinstance(out, Tensor)
    return out


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """torch's grouped convolution, padded on both sides and cut."""
    padded = F.conv1d(x, weight.unsqueeze(1), bias, padding=WIDTH - 1, groups=len(weight))
    return F.silu(padded[..., : x.shape[-1]])
