"""Selective scan, forward alone and with backward: mamba-ssm's formula and its own code, mambapy, transformers.

Each step of each state takes an exponential and about six multiplications and additions forward, thrice that with
backward. u, delta and the output are read and written once, and so are their gradients.
"""

from functools import partial

import torch
from torch import Tensor

from ...ops.selective_scan import selective_scan_fn
from ..case import OURS, Case, Contender, Draw, Prepared, Shape
from ..limits import Cost
from ..peers import scan as peers

SHAPES = ((64, 256, 16, 40), (64, 256, 16, 128))
LLM = ((4, 1536, 16, 1024),)
CURVE = (10, 20, 40, 80, 160)
CURVE_POSITIONS = 1280
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
VERIFY = ((2, 16, 16, 1), (3, 33, 7, 129), (2, 20, 64, 65))
"""A single position; odd sizes over several tiles; many states."""
CHECKED = {"batch": 2, "channels": 16}
RESULTS = ("y", "du", "ddelta", "dA", "dB", "dC", "dD", "ddelta_bias")
QUADRATIC = ("mamba-ssm", "mamba-ssm formula", "transformers")
"""Their backward passes take time that grows as L²: from L = 80 they get an eighth of a large batch, and from L = 512
an eighth of the channels."""


def cases() -> list[Case]:
    """Forward, and forward + backward, at two lengths; and over lengths."""
    made = [_case(*shape, backward, "tunnel") for shape in SHAPES for backward in (False, True)]
    made += [_case(*shape, True, "llm") for shape in LLM]
    made += [_case(CURVE_POSITIONS // n, 256, 16, n, True, "curve", curve="L") for n in CURVE]
    made += [_case(*shape, True, "verify", dtype) for dtype in TOLERANCE for shape in VERIFY]
    return made


def _case(
    batch: int,
    channels: int,
    states: int,
    length: int,
    backward: bool,
    size: str,
    dtype: torch.dtype = torch.float32,
    curve: str = "",
) -> Case:
    inner, outer = batch * channels * length, 2 * batch * states * length
    passes = 3 if backward else 1
    cost = Cost(
        dtype.itemsize * ((8.0 if backward else 3.0) * inner + (2 if backward else 1) * outer),
        6.0 * passes * inner * states,
        (2.0 if backward else 1.0) * inner * (states + 2),
    )
    work = "forward + backward" if backward else "forward"
    return Case(
        "selective_scan", work, {"batch": batch, "channels": channels, "states": states, "L": length}, dtype,
        size, "positions", batch * length, cost, TOLERANCE[dtype], _with_gradients if backward else _forward,
        CHECKED, curve, results=RESULTS if backward else RESULTS[:1],
    )  # fmt: skip


def _operands(draw: Draw, shape: Shape, grad: bool) -> list[Tensor]:
    """Tensors as a Mamba block makes them: A = −1 … −N, steps of about 0.01 to 1; weights are float32."""
    batch, channels, states, length = (shape[name] for name in ("batch", "channels", "states", "L"))
    sizes = [(batch, channels, length)] * 2 + [(batch, states, length)] * 2 + [(channels,)] * 2
    u, delta, B, C, D, bias = (draw.normal(*size) for size in sizes)
    A = -torch.arange(1.0, states + 1, device=u.device).repeat(channels, 1)
    return [t.requires_grad_(grad) for t in (u, delta, A, B, C, D.float(), bias.float() - 2)]


def ours(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> Tensor:
    """The op with mamba-ssm's signature."""
    out = selective_scan_fn(u, delta, A, B, C, D, None, bias, True)
    assert isinstance(out, Tensor)
    return out


def _exact(operands: list[Tensor]) -> list[Tensor]:
    return [t.detach().double().requires_grad_(t.requires_grad) for t in operands]


def _forward(draw: Draw, shape: Shape) -> Prepared:
    operands = _operands(draw, shape, grad=False)
    scans, missing = peers.load() if draw.peers else ({}, {})
    contenders = {name: Contender(partial(scan, *operands), looser=3.0) for name, scan in {OURS: ours, **scans}.items()}
    return Prepared(contenders, lambda: (peers.formula(*_exact(operands)),), missing)


def _with_gradients(draw: Draw, shape: Shape) -> Prepared:
    operands = _operands(draw, shape, grad=True)
    upstream = draw.normal(shape["batch"], shape["channels"], shape["L"])
    scans, missing = peers.load() if draw.peers else ({}, {})
    part, upstream_part, share = _part(operands, upstream)
    contenders = {}
    for name, scan in {OURS: ours, **scans}.items():
        if name in QUADRATIC and share < 1:
            contenders[name] = Contender(partial(_through, scan, part, upstream_part), looser=3.0, share=share)
        else:
            contenders[name] = Contender(partial(_through, scan, operands, upstream), looser=3.0)
    return Prepared(contenders, lambda: _through(peers.formula, _exact(operands), upstream.double()), missing)


def _part(operands: list[Tensor], upstream: Tensor) -> tuple[list[Tensor], Tensor, float]:
    """What is given to the quadratic ones, and which share of the work that is."""
    batch, channels, length = upstream.shape
    large = batch > CHECKED["batch"]  # where they are compared with float64 they do all of it
    few = max(1, batch // 8) if large and length >= 80 else batch
    wide = max(1, channels // 8) if large and length >= 512 else channels
    u, delta, A, B, C, D, bias = operands
    cut = [u[:few, :wide], delta[:few, :wide], A[:wide], B[:few], C[:few], D[:wide], bias[:wide]]
    part = [t.detach().clone().requires_grad_() for t in cut]
    return part, upstream[:few, :wide].contiguous(), few * wide / (batch * channels)


def _through(scan: peers.Scan, operands: list[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    out = scan(*operands)
    return (out, *torch.autograd.grad(out, operands, upstream))
