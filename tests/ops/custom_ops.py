"""Arguments for every launcher that torch knows, dense and with the axes of every tensor permuted in memory."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import bayesattn_fast.ops.attention_autograd
import bayesattn_fast.ops.causal_conv1d
import bayesattn_fast.ops.hmm
import bayesattn_fast.ops.selective_scan  # noqa: F401

Arguments = tuple[Any, ...]
CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
SEEDS, BATCH, CHANNELS, STATES, LENGTH = 2, 3, 5, 4, 70


def registered() -> set[str]:
    """The launchers of this package."""
    names = torch._C._dispatch_get_all_op_names()
    return {name.split("::")[1].split(".")[0] for name in names if name.startswith("bayesattn::")}


def permuted(tensor: Tensor) -> Tensor:
    """The same values, dense, with the axes reversed in memory."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def check(name: str, device: torch.device) -> int:
    """torch's opcheck of every call of one launcher; how many there were."""
    calls = list(_OPS[name](device))
    for arguments in calls:
        torch.library.opcheck(getattr(torch.ops.bayesattn, name).default, arguments, test_utils=CHECKS)
    return len(calls)


def _call(name: str, *arguments: Any) -> tuple[Tensor, ...]:
    return getattr(torch.ops.bayesattn, name)(*arguments)


def _normal(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _attention(device: torch.device, backward: bool) -> Iterator[Arguments]:
    live = torch.tensor([3, 9, 17], dtype=torch.int32, device=device)
    for dtype, statistics in ((torch.float32, True), (torch.bfloat16, False)):
        for layout in (torch.clone, permuted):
            q, k, v, u = (layout(_normal(device, 3, 2, 17, 8, seed=i).to(dtype)) for i in range(4))
            options = (live, None, True, 0.3, statistics, False)
            if not backward:
                yield q, k, v, *options
                continue
            o, lse, *_ = _call("attention_forward", q, k, v, *options)
            yield q, k, v, o, lse, u, _normal(device, *lse.shape), *options


def _scan(device: torch.device, backward: bool) -> Iterator[Arguments]:
    for layout in (torch.clone, permuted):
        for options in (True, False):
            u, delta, z = (layout(_normal(device, SEEDS, BATCH, CHANNELS, LENGTH, seed=i)) for i in range(3))
            A = layout(-_normal(device, SEEDS, CHANNELS, STATES, seed=3).abs())
            B, C = (layout(_normal(device, SEEDS, BATCH, 1, STATES, LENGTH, seed=i)) for i in (4, 5))
            D, bias = (layout(_normal(device, SEEDS, CHANNELS, seed=i)) for i in (6, 7))
            given = (u, delta, A, B, C, *((D, z, bias) if options else (None, None, None)), True)
            if not backward:
                yield *given, True
                continue
            out, last, states = _call("selective_scan_forward", *given, True)
            yield torch.randn_like(out), torch.randn_like(last), *given, states


def _conv(device: torch.device, backward: bool) -> Iterator[Arguments]:
    for layout in (torch.clone, permuted):
        for options in (True, False):
            x, dout = (layout(_normal(device, SEEDS, BATCH, CHANNELS, LENGTH, seed=i)) for i in range(2))
            weight, past = _normal(device, SEEDS, CHANNELS, 4), _normal(device, SEEDS, BATCH, CHANNELS, 3)
            bias = _normal(device, SEEDS, CHANNELS)
            given = (x, weight, *((bias, None, layout(past)) if options else (None, None, None)), True)
            yield (dout, *given) if backward else given


def _filter(device: torch.device, backward: bool) -> Iterator[Arguments]:
    seen = torch.randint(5, (BATCH, 9), generator=torch.Generator().manual_seed(0)).to(device)
    lengths = torch.tensor([9, 4, 1], device=device)
    for layout in (torch.clone, permuted):
        for lead in ((BATCH,), ()):
            shapes = ((*lead, STATES, STATES), (*lead, STATES, 5), (*lead, STATES))
            p, e, first = (layout(_normal(device, *shape).softmax(-1)) for shape in shapes)
            if not backward:
                yield p, e, seen, first, lengths, False
                continue
            *fields, _ = _call("hmm_filter", p, e, seen, first, lengths, False)
            yield *(torch.randn_like(field) for field in fields), p, e, seen, first, lengths, fields[0]


_OPS: dict[str, Callable[[torch.device], Iterator[Arguments]]] = {
    "attention_forward": lambda device: _attention(device, False),
    "attention_backward": lambda device: _attention(device, True),
    "selective_scan_forward": lambda device: _scan(device, False),
    "selective_scan_backward": lambda device: _scan(device, True),
    "causal_conv1d_forward": lambda device: _conv(device, False),
    "causal_conv1d_backward": lambda device: _conv(device, True),
    "hmm_filter": lambda device: _filter(device, False),
    "hmm_filter_backward": lambda device: _filter(device, True),
}
NAMES = tuple(_OPS)
