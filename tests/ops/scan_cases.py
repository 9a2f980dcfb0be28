"""Inputs of the selective scan for tests: every form, layout and size, from one integer seed."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.ops.selective_scan import selective_scan_fn

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
LAYOUTS = ("plain", "channel_last", "sliced", "shared")
FORMS = ("fixed", "varying", "grouped")


@dataclass(frozen=True)
class Case:
    """One call: sizes, the form of B and C, which options are given, the memory layout."""

    batch: int = 2
    channels: int = 6
    states: int = 4
    length: int = 37
    groups: int = 2
    B: str = "varying"
    C: str = "varying"
    options: tuple[str, ...] = ("D", "z", "delta_bias")
    softplus: bool = True
    layout: str = "plain"
    dtype: torch.dtype = torch.float32
    seed: int = 0


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values with other strides; `shared` repeats the first batch entry with a stride of 0."""
    if tensor.dim() < 2:
        return tensor
    if layout == "channel_last":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        padded = tensor.new_full((*tensor.shape[:-2], 2 * tensor.shape[-2], tensor.shape[-1] + 3), torch.nan)
        view = padded[..., ::2, 2:-1]
        return view.copy_(tensor)
    if layout == "shared" and tensor.dim() > 2 and tensor.shape[0] > 0:
        return tensor[:1].expand_as(tensor)
    return tensor


def draw_tensors(case: Case) -> dict[str, Tensor]:
    """Tensors by name, requiring gradients; A ≤ 0 over several orders of magnitude, as trained models have."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    batch, channels, length, count = case.batch, case.channels, case.length, case.states
    delta = normal(batch, channels, length) - 1
    shapes = {
        "fixed": (channels, count),
        "varying": (batch, count, length),
        "grouped": (batch, case.groups, count, length),
    }
    made = {
        "u": normal(batch, channels, length),
        "delta": delta if case.softplus else delta.exp().clamp(max=3),
        "A": -torch.exp(2 * normal(channels, count)),
        "B": normal(*shapes[case.B]),
        "C": normal(*shapes[case.C]),
        "D": normal(channels),
        "z": normal(batch, channels, length),
        "delta_bias": normal(channels) if case.softplus else normal(channels).abs(),
    }
    kept = {name: t for name, t in made.items() if name in ("u", "delta", "A", "B", "C", *case.options)}
    activations = {name for name, t in kept.items() if t.dim() > 2}
    return {
        name: laid_out(t.to(case.dtype) if name in activations else t, case.layout).detach().requires_grad_()
        for name, t in kept.items()
    }


def results(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """out, last state and the gradients of everything, for random upstream gradients of both."""
    out, last = selective_scan_fn(**tensors, delta_softplus=case.softplus, return_last_state=True)
    generator = torch.Generator().manual_seed(case.seed + 1)
    upstream = [torch.randn(t.shape, generator=generator).to(case.dtype) for t in (out, last)]
    gradients = torch.autograd.grad(
        [out, last], list(tensors.values()), [g.to(t.dtype) for g, t in zip(upstream, (out, last), strict=True)]
    )
    return {"out": out, "last_state": last, **{f"d{n}": g for n, g in zip(tensors, gradients, strict=True)}}


def results_under(back_end: str, case: Case) -> dict[str, Tensor]:
    """`results` of the case's own tensors from one back end."""
    with backend(back_end):
        return {name: value.detach() for name, value in results(case, draw_tensors(case)).items()}


def in_float64(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().double().requires_grad_() for name, t in tensors.items()}


def divisors(number: int) -> list[int]:
    return [d for d in range(1, min(number, 8) + 1) if number % d == 0]


@st.composite
def cases(draw: st.DrawFn, elements: int = 200_000) -> Case:
    """Sizes up to B 5, D 70, N 64, L 600, together at most `elements` state updates, so that float64 keeps up."""
    channels = draw(st.integers(1, 70))
    states = draw(st.one_of(st.integers(1, 64), st.just(16)))
    batch = draw(st.integers(0, 5))
    room = max(1, elements // (channels * states * max(batch, 1)))
    return Case(
        batch=batch,
        channels=channels,
        states=states,
        length=draw(st.one_of(st.integers(1, min(600, room)), st.sampled_from([1, 2, min(64, room), min(65, room)]))),
        groups=draw(st.sampled_from(divisors(channels))),
        B=draw(st.sampled_from(FORMS)),
        C=draw(st.sampled_from(FORMS)),
        options=tuple(name for name in ("D", "z", "delta_bias") if draw(st.booleans())),
        softplus=draw(st.booleans()),
        layout=draw(st.sampled_from(LAYOUTS)),
        seed=draw(st.integers(0, 2**20)),
    )


def with_dtype(case: Case, dtype: torch.dtype) -> Case:
    return replace(case, dtype=dtype)
