"""A tunnel's batch is the same on every back end: integers and inputs bit for bit, answers to one float32 rounding."""

import pytest
import torch

from bayesattn_fast.backends import backend
from bayesattn_fast.tunnels import PRESETS, Stream, Tunnel
from tests.closeness import assert_close
from tests.tunnels.test_contract import SMALL

PAPER = [tunnel for tunnel in PRESETS["paper"].values() if tunnel.length < 1000]
ALL: list[Tunnel] = [*SMALL, *PRESETS["quick"].values(), *PAPER]
ROUNDING = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("tunnel", ALL, ids=lambda t: f"{t.name}-{ALL.index(t)}")
@pytest.mark.parametrize(
    ("seeds", "step", "size", "first"), [([0], 0, 1, 0), ([2**62 + 1, 3], 2**32 - 1, 37, 2**31), ([5, 6, 7], 41, 16, 1)]
)
def test_native_samplers_draw_the_bits_of_the_reference(
    tunnel: Tunnel, seeds: list[int], step: int, size: int, first: int
) -> None:
    native = tunnel.sample(seeds, step, size, stream=Stream.HELD_OUT, first=first)
    with backend("reference"):
        plain = tunnel.sample(seeds, step, size, stream=Stream.HELD_OUT, first=first)
    assert torch.equal(native.inputs, plain.inputs)
    assert torch.equal(native.targets, plain.targets)
    assert_close(native.predictive, plain.predictive, ROUNDING, "predictive")
    assert_close(native.entropy, plain.entropy, ROUNDING, "entropy")
    # Eliminated answers have exactly no mass, whoever computes them.
    assert torch.equal(native.predictive == 0, plain.predictive == 0)
