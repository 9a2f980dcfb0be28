"""What a row may not see cannot touch it: dead rows and keys, NaN, memory outside the outputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels.attention import native, reference
from tests.closeness import relative_error
from tests.ops.attention_cases import DTYPES, Case, case

BOTH = pytest.mark.parametrize("implementation", [native, reference], ids=["native", "reference"])
ROWS = ("o", "lse", "dq", "entropy", "max_weight", "expected", "variance", "score_norm2")
KEYS = ("dk", "dv", "responsibility", "routing", "absolute_routing", "value_norm")


@BOTH
@pytest.mark.parametrize("causal", [True, False])
def test_rows_without_keys_are_zero_and_their_gradients_too(implementation: Any, causal: bool) -> None:
    made = case((3, 2, 1, 20, 20, 8, 8), causal=causal, lengths=[0, 20, 5], query_lengths=[20, 6, 0], dlse=True)
    results = made.results(implementation)
    dead = torch.zeros(3, 2, 20, dtype=torch.bool)
    dead[0], dead[1, :, 6:], dead[2] = True, True, True
    for name in ROWS:
        wanted = -torch.inf if name == "lse" else 0.0
        assert bool((results[name][dead] == wanted).all()), name
        assert bool(results[name][~dead].isfinite().all()), name
    assert torch.equal(results["argmax"] == -1, dead)
    for name in KEYS:
        assert bool((results[name][[0, 2]] == 0).all()), name


@BOTH
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [16, 20])
def test_nan_past_the_lengths_changes_nothing(implementation: Any, dtype: torch.dtype, width: int) -> None:
    made = case((2, 4, 2, 37, 41, width, width), dtype, lengths=[41, 21], query_lengths=[30, 37], dlse=True)
    assert made.dlse is not None
    wanted = made.results(implementation)
    made.k[1, :, 21:], made.v[1, :, 21:] = torch.nan, torch.inf
    made.q[0, :, 30:], made.u[0, :, 30:], made.dlse[0, :, 30:] = torch.nan, torch.nan, torch.nan
    for name, x in made.results(implementation).items():
        assert torch.equal(x, wanted[name]), name


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 20])
@pytest.mark.parametrize("broken", ["k", "v"])
def test_nan_in_a_key_or_value_reaches_only_the_rows_that_see_it(
    implementation: Any, dtype: torch.dtype, width: int, broken: str
) -> None:
    made = case((1, 2, 1, 37, 37, width, width), dtype)
    wanted = made.results(implementation)
    getattr(made, broken)[0, 0, 13, 3] = torch.nan
    results = made.results(implementation)
    for name in ROWS:
        assert relative_error(results[name][:, :, :13], wanted[name][:, :, :13]) < 1e-6, name
    assert bool(results["o"][:, :, 13:].isnan().any(-1).all())
    assert bool(results["dq"][:, :, 13:].isnan().any(-1).all())


@BOTH
@pytest.mark.parametrize("broken", ["q", "u"])
def test_nan_in_a_row_reaches_only_the_keys_it_sees(implementation: Any, broken: str) -> None:
    made = case((1, 2, 1, 37, 37, 16, 16))
    wanted = made.results(implementation)
    getattr(made, broken)[0, 1, 13, 3] = torch.nan
    results = made.results(implementation)
    for name in KEYS:
        x, exact = results[name][:, :, 14:], wanted[name][:, :, 14:]
        assert relative_error(x, exact) < 1e-6, name
    assert bool(results["dk"][0, 0, :14].isnan().any(-1).all())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(2, 4, 2, 1, 1, 1, 1), (2, 4, 2, 19, 37, 20, 7), (1, 2, 1, 130, 90, 32, 16)])
def test_nothing_is_written_outside_the_outputs(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Every output is the inside of a larger tensor full of canaries, in front, behind and between its rows."""
    canary = 123.0
    frames: list[tuple[Tensor, tuple[slice, ...]]] = []

    def framed(size: tuple[int, ...], kind: torch.dtype) -> Tensor:
        frame = torch.full([n + 4 for n in size], canary, dtype=kind)
        inside = tuple(slice(2, n + 2) for n in size)
        frames.append((frame, inside))
        return frame[inside]

    def planes(q: Tensor, positions: int, kind: torch.dtype = torch.float32) -> Tensor:
        count = q.shape[0] * q.shape[1] * positions
        frame = torch.full((count + 64,), canary).to(kind)
        frames.append((frame, (slice(32, count + 32),)))
        return frame[32 : count + 32].view(*q.shape[:2], positions)

    monkeypatch.setattr(native, "like_heads", lambda x, width: framed((*x.shape[:3], width), x.dtype))
    monkeypatch.setattr(native, "_plane_of", planes)
    made = case(shape, dtype, lengths=[shape[4] // 2] * shape[0])  # type: ignore[arg-type]
    exact = made.double().results(reference)
    for name, x in made.results(native).items():
        assert relative_error(x, exact[name]) < 0.01, name
    assert len(frames) == 15
    for frame, inside in frames:
        frame[inside] = canary
        assert bool((frame == canary).all())


def test_lengths_outside_the_range_are_clamped() -> None:
    def with_lengths(lengths: list[int]) -> Case:
        return case((2, 2, 1, 9, 11, 8, 8), causal=False, lengths=lengths, query_lengths=lengths)

    wanted = with_lengths([0, 11]).results(native)
    for name, x in with_lengths([-5, 1000]).results(native).items():
        assert torch.equal(x, wanted[name]), name
