"""The Triton kernels of the scan and the short convolution, compiled as launched, for GPUs that need not be there.

What the compiler makes of them: no spills, shared memory that fits every architecture, no float atomics. `pytest -s`
shows the table of what each takes.
"""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("triton")

from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.causal_conv1d import backward as conv_backward
from bayesattn_fast.kernels.causal_conv1d import forward as conv_forward
from bayesattn_fast.kernels.selective_scan import backward, forward, reference

ARCHITECTURES = (80, 90, 100)
# What a program may take on the smallest of them all (compute capability 8.6, 8.9, 12.0).
SHARED_EVERYWHERE = 99 * 1024


class Scan(NamedTuple):
    """A scan call: everything that decides which code is compiled."""

    dtype: torch.dtype = torch.float32
    channels: int = 256
    states: int = 16
    length: int = 128
    fixed_B: bool = False
    fixed_C: bool = False
    options: bool = True
    channel_last: bool = False


SCANS = {
    "float32": Scan(),
    "bfloat16, channel-last": Scan(dtype=torch.bfloat16, channel_last=True),
    "short": Scan(length=40, channel_last=True),
    "long, without options": Scan(length=4096, options=False),
    "one state": Scan(states=1),
    "64 states": Scan(states=64),
    "256 states": Scan(states=256),
    "odd sizes": Scan(channels=70, states=13, length=601),
    "fixed B": Scan(fixed_B=True),
    "fixed B and C": Scan(fixed_B=True, fixed_C=True),
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was compiled outside the user's cache; a kernel's source is part of its key."""
    folder = Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))


def compile_scan(call: Scan, capability: int) -> list[gpu.Compiled]:
    """The kernels of a forward and a backward pass."""

    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    e, b, d, n, t = 1, 64, call.channels, call.states, call.length
    wide = (
        meta(e, b, t, d, dtype=call.dtype).transpose(2, 3) if call.channel_last else meta(e, b, d, t, dtype=call.dtype)
    )
    B, C = (meta(e, d, n) if fixed else meta(e, b, 1, n, t, dtype=call.dtype) for fixed in (call.fixed_B, call.fixed_C))
    D = meta(e, d) if call.options else None
    z = wide if call.options else None
    shared = (wide, wide, meta(e, d, n), B, C, D, z, D, True)
    states = meta(e, b, reference.saved_states(t), n, d)
    last = meta(e, b, d, n) if call.options else None
    with gpu.compile_only(capability) as kernels:
        forward.selective_scan_forward(*shared, call.options)
        backward.selective_scan_backward(wide, last, *shared, states)
    return kernels


def check(name: str, kernel: gpu.Compiled) -> None:
    usage = gpu.usage(kernel)
    line = (
        f"sm_{kernel.capability:<3} {kernel.name.removesuffix('_kernel'):<14} {name:<24} warps {kernel.warps} "
        f"registers {usage.registers:>3} shared {usage.shared / 1024:5.1f} KiB"
    )
    print(line)
    assert (usage.spills, usage.stack, usage.local) == (0, 0, 0), line
    assert usage.shared <= min(SHARED_EVERYWHERE, gpu.SHARED_LIMIT[kernel.capability]), line
    assert usage.atomics == 0, line


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("name", SCANS)
def test_scan_kernels_fit_without_spills_and_without_atomics(name: str, capability: int) -> None:
    kernels = compile_scan(SCANS[name], capability)
    assert [kernel.name for kernel in kernels] == ["forward_kernel", "backward_kernel"]
    for kernel in kernels:
        check(name, kernel)


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("everything", [False, True], ids=["plain", "bias, sequences and initial states"])
def test_convolution_kernels_fit_without_spills_and_without_atomics(everything: bool, capability: int) -> None:
    x = torch.empty(1, 64, 256, 128, device="meta")
    weight = torch.empty(1, 256, 4, device="meta")
    extra = (
        torch.empty(1, 256, device="meta") if everything else None,
        torch.empty(1, 64, 128, dtype=torch.int32, device="meta") if everything else None,
        torch.empty(1, 64, 256, 3, device="meta") if everything else None,
    )
    with gpu.compile_only(capability) as kernels:
        conv_forward.causal_conv1d_forward(x, weight, *extra, True)
        conv_backward.causal_conv1d_backward(x, x, weight, *extra, True)
    for kernel in kernels:
        check("convolution", kernel)
