"""The Triton kernels of a single head, compiled as launched, for GPUs that need not be there.

What the compiler makes of them: no spills, shared memory that fits every architecture, no float atomics. `pytest -s`
shows the table of what each takes; `-m slow` goes through every tile and form of a call.
"""

import itertools
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.single_head import forward

ARCHITECTURES = (80, 90, 100)
# What a program may take on the smallest of them all (compute capability 8.6, 8.9, 12.0).
SHARED_EVERYWHERE = 99 * 1024
# The sticky chain's head, and the widest that the kernels take.
STICKY, WIDEST = (20, 10, 15, 8), (64, 64, 64, 64)


class Head(NamedTuple):
    """Everything that decides which code is compiled; sizes are Dx, Dk, Dv, C."""

    sizes: tuple[int, int, int, int] = STICKY
    length: int = 2000
    soft: bool = False
    statistics: bool = True
    causal: bool = True


TYPICAL = {
    "sticky chain": Head(),
    "sticky chain, training": Head(statistics=False),
    "short": Head(length=60),
    "widest, soft": Head(WIDEST, soft=True),
    "widest, short": Head(WIDEST, length=60, causal=False),
}
EVERYTHING = [
    Head((1, *widths), length, soft, statistics, causal)
    for widths in itertools.product((16, 32, 64), repeat=3)
    for length, soft, statistics, causal in (
        (2000, False, True, True),
        (2000, True, False, False),
        (60, False, False, True),
        (60, True, True, False),
    )
]

TRAINED = [
    Head(sizes, soft=soft, causal=causal)
    for sizes in (*itertools.product((16, 32), repeat=4), WIDEST, (64, 16, 16, 16), (16, 64, 16, 64), (20, 16, 64, 10))
    for soft, causal in ((False, True), (True, False))
]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was compiled outside the user's cache; a kernel's source is part of its key."""
    folder = Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def compile_step(head: Head, capability: int) -> list[gpu.Compiled]:
    """The kernels of one step."""
    _, d, values, classes = head.sizes
    seeds, n = 2, head.length
    q, v = meta(seeds, 1, n, d), meta(seeds, 1, n, values)
    targets = meta(seeds, 1, n, classes) if head.soft else meta(seeds, 1, n, dtype=torch.int64)
    with gpu.compile_only(capability) as kernels:
        w_out = meta(seeds, values, classes)
        forward.attention_cross_entropy(q, q, v, w_out, targets, head.causal, 0.3, head.statistics)
    return kernels


def check(name: str, kernel: gpu.Compiled) -> None:
    usage = gpu.usage(kernel)
    line = (
        f"sm_{kernel.capability:<3} {kernel.name.removesuffix('_kernel'):<9} {name:<24} block {kernel.config.block} "
        f"warps {kernel.warps} registers {usage.registers:>3} shared {usage.shared / 1024:5.1f} KiB {usage.matrix}"
    )
    print(line)
    assert (usage.spills, usage.stack, usage.local) == (0, 0, 0), line
    assert usage.shared <= SHARED_EVERYWHERE, line
    assert usage.atomics == 0, line
    # float32 in full: nothing may have been rounded for tensor cores.
    assert "FFMA" in usage.matrix, line


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("name", TYPICAL)
def test_steps_fit_without_spills_in_full_precision(name: str, capability: int) -> None:
    kernels = compile_step(TYPICAL[name], capability)
    assert [k.name for k in kernels] in (["sequence_kernel"], ["rows_kernel", "columns_kernel"])
    for kernel in kernels:
        check(name, kernel)


def compile_trainer(head: Head, capability: int) -> gpu.Compiled:
    """The kernel that trains, without those of its records."""
    inputs, d, values, classes = head.sizes
    seeds, n = 2, head.length
    targets = meta(seeds, 1, n, classes) if head.soft else meta(seeds, 1, n, dtype=torch.int64)
    shapes = ((inputs, d), (inputs, d), (inputs, values), (values, classes))
    weights, rates = [meta(seeds, *shape) for shape in shapes], meta(seeds, 4)
    with gpu.compile_only(capability) as kernels:
        x = meta(seeds, 1, n, inputs)
        forward.train_single_head(x, targets, weights, rates, 9, 10, 8.0, None, head.causal, 0.3)
    return next(kernel for kernel in kernels if kernel.name == "train_kernel")


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("name", ["sticky chain", "widest, soft"])
def test_the_trainer_fits_without_spills_and_reads_what_it_wrote(name: str, capability: int) -> None:
    kernel = compile_trainer(TYPICAL[name], capability)
    check(name, kernel)
    # The read-only cache would serve what lay there before the program's own stores.
    assert "ld.global.nc" not in kernel.kernel.asm["ptx"]
    assert kernel.kernel.asm["ptx"].count("bar.sync") > 0


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("head", TRAINED, ids=str)
def test_every_form_of_the_trainer_fits_without_spills(head: Head, capability: int) -> None:
    check(str(head), compile_trainer(head, capability))


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("head", EVERYTHING, ids=str)
def test_every_form_of_a_step_fits_without_spills(head: Head, capability: int) -> None:
    for kernel in compile_step(head, capability):
        check(str(head), kernel)
