"""Triton kernels of elimination: the reference's bits in the interpreter, without spills when compiled."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.elimination import forward
from bayesattn_fast.posteriors import BijectionPredictive, RecallPredictive, bijection_predictive, recall_predictive
from tests.closeness import assert_close
from tests.interpreter import interpreted, only_result

HERE = "tests.kernels.test_elimination_triton"


def public_bijection(*inputs: Tensor, **options: object) -> BijectionPredictive:
    with backend("triton"):
        return bijection_predictive(*inputs, **options)  # type: ignore[arg-type]


def public_recall(*inputs: Tensor, **options: object) -> RecallPredictive:
    with backend("triton"):
        return recall_predictive(*inputs, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "pairs", "symbols", "replaced"), [(3, 5, 6, False), (300, 2, 3, True), (2, 7, 5, True), (1, 1, 1, False)]
)
def test_bijections_of_triton_equal_the_reference(
    batch: int, pairs: int, symbols: int, replaced: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    pi, keys = (torch.rand(batch, symbols, generator=generator).argsort(1) for _ in range(2))
    keys = torch.randint(symbols, (batch, pairs), generator=generator) if replaced else keys[:, :pairs]
    values = pi.gather(1, keys)
    found, launches = interpreted(HERE, "public_bijection", keys, values, symbols=symbols, dtype=dtype)
    assert [launch.kernel for launch in launches] == ["bijection_kernel"]
    with backend("reference"):
        exact = bijection_predictive(keys, values, symbols)
    assert torch.equal(found.predictive, exact.predictive.to(dtype))
    for f, e in zip(found[1:], exact[1:], strict=True):
        assert f.dtype == dtype
        assert_close(f, e, torch.finfo(dtype).eps)


def test_contradictions_cost_triton_minus_infinity_and_are_not_learnt_from() -> None:
    keys, values = torch.tensor([[0, 0, 1, 0], [0, 1, 2, 1]]), torch.tensor([[1, 2, 1, 1], [0, 0, 2, 1]])
    found = only_result(HERE, "public_bijection", keys, values, symbols=3, allow_impossible=True)
    with backend("reference"):
        exact = bijection_predictive(keys, values, 3, allow_impossible=True)
    assert torch.equal(found.predictive, exact.predictive)
    assert found.log_evidence.tolist() == [float("-inf")] * 2
    with pytest.raises(ValueError, match=r"values must have positive probability .*sequence 0, position 1"):
        only_result(HERE, "public_bijection", keys, values, symbols=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("batch", "stored", "queries", "symbols"), [(3, 4, 3, 9), (1, 1, 1, 2), (2, 5, 130, 11)])
def test_recall_of_triton_equals_the_reference(
    batch: int, stored: int, queries: int, symbols: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.rand(batch, symbols, generator=generator).argsort(1)[:, :stored] for _ in range(2))
    asked = torch.randint(symbols, (batch, queries), generator=generator)
    found, launches = interpreted(HERE, "public_recall", keys, values, asked, values=symbols, dtype=dtype)
    assert [launch.kernel for launch in launches] == ["recall_kernel"]
    with backend("reference"):
        exact = recall_predictive(keys, values, asked, symbols)
    assert torch.equal(found.predictive, exact.predictive.to(dtype))
    assert_close(found.entropy, exact.entropy, torch.finfo(dtype).eps)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"))


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_eliminations_compile_without_spills_or_float_atomics(capability: int) -> None:
    def meta(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.int64, device="meta")

    with gpu.compile_only(capability) as kernels:
        for dtype in (torch.float32, torch.float64):
            for batch, symbols in ((64, 20), (100_000, 20), (64, forward.MOST_SYMBOLS)):
                forward.bijection(meta(batch, 19), meta(batch, 19), symbols, dtype)
            for symbols in (32, 256, forward.MOST_SYMBOLS):
                forward.recall(meta(64, 64), meta(64, 64), meta(64, 3), symbols, dtype)
    assert len(kernels) == 12
    for kernel in kernels:
        usage = gpu.usage(kernel)
        print(f"sm_{capability} {kernel.name} {kernel.config} registers {usage.registers} shared {usage.shared}")
        assert (usage.spills, usage.stack, usage.local, usage.atomics) == (0, 0, 0, 0), kernel.config
