"""Every Triton kernel, compiled as it would be launched, for GPUs that need not be there.

The compiler's answers are checked against what the tile tables promise: no spills, shared memory that fits every
architecture, tensor cores for 16-bit operands, no float atomics. `pytest -s` shows the table of what each takes;
`-m slow` goes through every row of the attention table.
"""

import itertools
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")

from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.attention import backward, forward, tiles

ARCHITECTURES = (80, 90, 100)
# What a program may take on the smallest of them all (compute capability 8.6, 8.9, 12.0).
SHARED_EVERYWHERE = 99 * 1024


class Call(NamedTuple):
    """An attention call: everything that decides which code is compiled."""

    dtype: torch.dtype
    n_q: int
    n_k: int
    d: int
    causal: bool = True
    statistics: bool = True
    masks: bool = True
    group: int = 1
    tf32: bool = False


TYPICAL = (
    Call(torch.bfloat16, 128, 128, 32),
    Call(torch.bfloat16, 512, 512, 64),
    Call(torch.float16, 40, 40, 24, causal=False, statistics=False, masks=False),
    Call(torch.float32, 40, 40, 16),
    Call(torch.float32, 300, 200, 64),
)
# Every row of the table, each with all that takes registers; sizes just above a tile make a loop of each kernel.
EVERYTHING = [
    Call(dtype, n_q, n_k, d, group=group, tf32=tf32)
    for (dtype, tf32), d, (n_q, n_k, group) in itertools.product(
        ((torch.bfloat16, False), (torch.float32, False), (torch.float32, True)),
        (16, 32, 64, 128, 256),
        ((128, 16, 1), (16, 16, 1), (128, 32, 1), (32, 32, 1), (128, 64, 1), (64, 64, 1), (128, 128, 1), (300, 300, 2)),
    )
    if n_q == 300 or (d <= 64 and not tf32)
]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was compiled outside the user's cache; a kernel's source is part of its key."""
    folder = Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))


def compile_both_passes(call: Call, capability: int) -> list[gpu.Compiled]:
    """The kernels of a forward and a backward pass."""

    def meta(*shape: int, dtype: torch.dtype = call.dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    b, h, h_kv = 64, 2 * call.group, 2
    q, k = meta(b, h, call.n_q, call.d), meta(b, h_kv, call.n_k, call.d)
    lse = meta(b, h, call.n_q, dtype=torch.float32)
    counts = meta(b, dtype=torch.int32) if call.masks else None
    common: dict[str, Any] = {
        "causal": call.causal,
        "scale": 0.3,
        "lengths": counts,
        "query_lengths": counts,
        "statistics": call.statistics,
        "tf32": call.tf32,
    }
    with gpu.compile_only(capability) as kernels:
        forward.forward(q, k, k, **common)
        backward.backward(q, k, k, q, lse, q, dlse=lse if call.masks else None, **common)
    return kernels


def row(call: Call, kernel: gpu.Compiled, usage: gpu.Usage) -> str:
    """One line of the table."""
    precision = "tf32" if call.tf32 else str(call.dtype).removeprefix("torch.")
    tile = f"{kernel.config.block_m}x{kernel.config.block_n}"
    name = kernel.name.removesuffix("_kernel")
    return (
        f"sm_{kernel.capability:<3} {name:<16} {precision:<8} {call.n_q:>3}x{call.n_k:<3} D {call.d:<3} tile {tile:<7} "
        f"warps {kernel.warps} registers {usage.registers:>3} shared {usage.shared / 1024:5.1f} KiB {usage.matrix}"
    )


def check(call: Call, capability: int) -> None:
    kernels = compile_both_passes(call, capability)
    assert {kernel.name for kernel in kernels} >= {"forward_kernel", "backward_columns_kernel"}
    for kernel in kernels:
        usage = gpu.usage(kernel)
        line = row(call, kernel, usage)
        print(line)
        assert (usage.spills, usage.stack, usage.local) == (0, 0, 0), line
        assert usage.shared <= min(SHARED_EVERYWHERE, gpu.SHARED_LIMIT[capability]), line
        assert usage.atomics == 0, line
        if call.dtype != torch.float32 or call.tf32:
            assert re.search("HMMA|HGMMA|UTCHMMA", usage.matrix), line
        else:
            assert "FFMA" in usage.matrix, line


@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("call", TYPICAL, ids=lambda call: f"{str(call.dtype)[6:]}-{call.n_q}x{call.n_k}-{call.d}")
def test_kernels_fit_without_spills_and_use_tensor_cores_for_16_bit_operands(call: Call, capability: int) -> None:
    check(call, capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize("call", EVERYTHING, ids=str)
def test_every_row_of_the_attention_table_fits_without_spills(call: Call, capability: int) -> None:
    check(call, capability)


@pytest.mark.parametrize(("capability", "instruction"), [(80, "HMMA"), (90, "HGMMA"), (100, "UTCHMMA")])
def test_long_half_precision_heads_use_the_widest_matrix_instructions(capability: int, instruction: str) -> None:
    kernels = compile_both_passes(TYPICAL[1], capability)
    assert instruction in gpu.usage(kernels[0]).matrix


def test_the_table_has_tiles_for_every_arithmetic_and_head_size() -> None:
    for dtype, tf32, d in itertools.product(
        (torch.float32, torch.bfloat16, torch.float16), (False, True), range(1, 257)
    ):
        for n in (1, 128, 129):
            q = torch.empty(1, 1, n, d, dtype=dtype, device="meta")
            wide = torch.empty(1, 1, n, 256, dtype=dtype, device="meta")
            for v in (q, wide):
                made = tiles.forward_schedule(q, q, v, tf32=tf32), *tiles.backward_schedule(q, q, v, tf32=tf32)
                for schedule in filter(None, made):
                    assert not schedule.whole or schedule.block_n >= n
                    # A product needs at least 16 on every side on the device, whatever the interpreter takes.
                    assert min(schedule.block_m, schedule.block_n) >= 16


def test_a_gpu_kernel_refuses_tensors_of_the_cpu_by_name() -> None:
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="forward_kernel is a GPU kernel and its tensors are on cpu"):
        forward.forward(q, q, q, causal=True, scale=1.0, lengths=None, query_lengths=None, statistics=False)


def test_more_programs_than_one_launch_takes_are_refused_with_both_numbers() -> None:
    q = torch.empty(1, 1, 1, 8, device="meta").expand(2**20, 2**11, 1, 8)
    with (
        gpu.compile_only(90),
        pytest.raises(ValueError, match="2147483648 programs; one launch takes at most 2147483647"),
    ):
        forward.forward(q, q, q, causal=True, scale=1.0, lengths=None, query_lengths=None, statistics=False)


def test_a_tile_that_does_not_hold_all_keys_cannot_be_called_whole() -> None:
    q = torch.empty(1, 1, 40, 8, device="meta")
    schedule = tiles.Schedule(True, 16, 32, gpu.launch.Resources(4, 1))
    with pytest.raises(ValueError, match="32 columns are not 40 keys"):
        forward.forward(
            q, q, q, causal=True, scale=1.0, lengths=None, query_lengths=None, statistics=False, schedule=schedule
        )
