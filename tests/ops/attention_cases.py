"""Inputs for the attention tests, and every result of both passes by name."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from bayesattn_fast.kernels.attention import reference
from tests.closeness import relative_error

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
TINY = 1e-24


@dataclass
class Case:
    """Arguments of both passes of an implementation."""

    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor
    dlse: Tensor | None
    options: dict[str, Any]

    def double(self) -> "Case":
        """The same numbers in float64."""
        dlse = None if self.dlse is None else self.dlse.double()
        return Case(self.q.double(), self.k.double(), self.v.double(), self.u.double(), dlse, self.options)

    def results(self, implementation: ModuleType) -> dict[str, Tensor]:
        """Every output of forward and backward."""
        f = implementation.forward(self.q, self.k, self.v, **self.options)
        b = implementation.backward(self.q, self.k, self.v, f.o, f.lse, self.u, dlse=self.dlse, **self.options)
        named = f._asdict() | b._asdict()
        for group in (named.pop("rows"), named.pop("columns")):
            named |= {} if group is None else group._asdict()
        return {name: x for name, x in named.items() if x is not None}


def case(
    shape: tuple[int, int, int, int, int, int, int] = (2, 4, 2, 33, 33, 16, 16),
    dtype: torch.dtype = torch.float32,
    *,
    causal: bool = True,
    scale: float | None = None,
    lengths: list[int] | None = None,
    query_lengths: list[int] | None = None,
    statistics: bool = True,
    dlse: bool = False,
    seed: int = 0,
) -> Case:
    """Standard normal inputs of shape (B, H, H_kv, N_q, N_k, D, D_v)."""
    batch, heads, groups, queries, keys, width, value_width = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    return Case(
        normal(batch, heads, queries, width).to(dtype),
        normal(batch, groups, keys, width).to(dtype),
        normal(batch, groups, keys, value_width).to(dtype),
        normal(batch, heads, queries, value_width).to(dtype),
        normal(batch, heads, queries) if dlse else None,
        {
            "causal": causal,
            "scale": width**-0.5 if scale is None else scale,
            "lengths": None if lengths is None else torch.tensor(lengths, dtype=torch.int32),
            "query_lengths": None if query_lengths is None else torch.tensor(query_lengths, dtype=torch.int32),
            "statistics": statistics,
        },
    )


def permuted(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another memory layout: rows before heads, every second column, or as they are."""
    if layout == "rows first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        return torch.stack((x, torch.full_like(x, torch.nan)), -1).flatten(-2)[..., ::2]
    if layout == "columns first":
        return x.mT.contiguous().mT
    return x


@st.composite
def cases(
    draw: st.DrawFn,
    dtype: torch.dtype,
    longest: int = 300,
    widest: int = 128,
    logits: tuple[float, ...] = (),
) -> Case:
    """Any shape, mask, grouping, layout. Scores of standard normal inputs, or up to one of `logits` in size."""
    batch, groups, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    edges = st.sampled_from([1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128])
    queries = draw(st.one_of(edges, st.integers(1, longest)))
    keys = draw(st.one_of(st.just(queries), edges, st.integers(1, longest)))
    width = draw(st.one_of(st.sampled_from([1, 8, 12, 16, 24, 32]), st.integers(1, widest)))
    value_width = draw(st.one_of(st.just(width), st.integers(1, widest)))
    counts = lambda most: st.one_of(st.none(), st.lists(st.integers(0, most), min_size=batch, max_size=batch))  # noqa: E731
    made = case(
        (batch, groups * group, groups, queries, keys, width, value_width),
        dtype,
        causal=draw(st.booleans()),
        scale=width**-0.5 * draw(st.sampled_from([0.25, 1.0, 2.0])),
        lengths=draw(counts(keys)),
        query_lengths=draw(counts(queries)),
        dlse=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )
    if logits:
        score = made.q.double() @ made.k.double().repeat_interleave(group, 1).mT
        made.options["scale"] = draw(st.sampled_from(logits)) / float(score.abs().max())
    layouts = st.sampled_from(["plain", "plain", "rows first", "strided", "columns first"])
    made.q, made.k, made.v, made.u = (permuted(x, draw(layouts)) for x in (made.q, made.k, made.v, made.u))
    return made


def assert_accurate(made: Case, results: dict[str, Tensor], or_as_good_as_plain: bool = True) -> None:
    """Within the precision's tolerance of the float64 definition, or as good as the definition in that precision.

    The second clause is for draws whose exact gradient is all cancellation, such as a row with two equal keys. E_α[b],
    a sum of both signs, is measured against what it sums, (Σ_j α_ij b_ij²)^½, where that is larger: a draw of one row
    has but one such number, and that may be near 0. Weights below e^−86 count as 0, so nothing is smaller than TINY.
    """
    exact, plain = made.double().results(reference), made.results(reference)
    assert results.keys() == exact.keys()
    for name, wanted in exact.items():
        if name == "argmax":
            _assert_argmax(made, results["argmax"], wanted)
            continue
        least = TINY
        if name == "expected":
            least += float((exact["variance"] + exact["expected"].square()).sqrt().norm())
        allowed = TOLERANCE[made.q.dtype]
        if or_as_good_as_plain:
            allowed = max(allowed, 2 * _error(plain[name], wanted, least))
        error = _error(results[name], wanted, least)
        assert error <= allowed, f"{name}: relative error {error:.3g} > {allowed:.3g}"


def _error(found: Tensor, wanted: Tensor, least: float) -> float:
    """The relative error, of a `wanted` taken to be no smaller than `least`."""
    size = float(torch.where(wanted.isinf(), 0, wanted).norm())
    return relative_error(found, wanted) * (min(size / least, 1.0) if size > 0 else 1.0)


def _assert_argmax(made: Case, found: Tensor, wanted: Tensor) -> None:
    """The same key, or one whose weight is the maximum to rounding; −1 exactly in dead rows."""
    options = {name: x for name, x in made.options.items() if name != "statistics"}
    weight = reference.dense(*(x.double() for x in (made.q, made.k, made.v, made.u)), **options).weight
    dead = wanted == -1
    assert torch.equal(found == -1, dead)
    at_found = weight.gather(-1, found.clamp_min(0).long()[..., None])[..., 0]
    assert bool(((at_found >= weight.amax(-1) * (1 - 1e-5)) | dead).all()), "argmax is not at the maximum"
