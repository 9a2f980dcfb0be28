"""Samplers in Triton: the reference's words, integers and answers, bit for bit; without spills when compiled."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels._triton.philox import Draws
from bayesattn_fast.kernels.elimination import sample
from bayesattn_fast.tunnels import Bijection, Stream, Tunnel
from bayesattn_fast.tunnels.protocol import Batch
from tests.interpreter import interpreted

HERE = "tests.kernels.test_samplers_triton"
DRAWS = [([0], 0, 2, 0), ([2**62 + 1, 3], 2**32 - 1, 2, 2**32 - 2)]


def drawn(tunnel: Tunnel, seeds: list[int], step: int, size: int, first: int, name: str) -> Batch:
    """A batch by one back end."""
    with backend(name):
        return tunnel.sample(seeds, step, size, stream=Stream.HELD_OUT, first=first)


@pytest.mark.parametrize(
    "tunnel",
    [
        Bijection(symbols=5, pairs=4),
        Bijection(symbols=4, pairs=6, with_replacement=True, separator=True),
        Bijection(symbols=2, pairs=1, shared_symbols=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("seeds", "step", "size", "first"), DRAWS)
def test_triton_draws_the_bits_of_the_reference(
    tunnel: Tunnel, seeds: list[int], step: int, size: int, first: int
) -> None:
    found, launches = interpreted(HERE, "drawn", tunnel, seeds, step, size, first, "triton")
    assert len(launches) == 1
    plain = drawn(tunnel, seeds, step, size, first, "reference")
    for name in ("inputs", "targets", "predictive", "entropy"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"))


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_samplers_compile_without_spills_or_float_atomics(capability: int) -> None:
    seeds: Tensor = torch.empty(4, dtype=torch.int64, device="meta")
    with gpu.compile_only(capability) as kernels:
        for size, symbols, repeated in ((64, 20, False), (30_000, 20, False), (64, 20, True), (64, 1024, False)):
            draws = Draws(seeds, size, 0, 2**32 - 1, 0)
            layout = {"separator": repeated, "shared_symbols": repeated, "with_replacement": repeated}
            sample.bijection_sample(draws, symbols, 19, **layout)
    assert len(kernels) == 4
    for kernel in kernels:
        usage = gpu.usage(kernel)
        print(f"sm_{capability} {kernel.name} {kernel.config} registers {usage.registers} shared {usage.shared}")
        assert (usage.spills, usage.stack, usage.local, usage.atomics) == (0, 0, 0, 0), kernel.config
