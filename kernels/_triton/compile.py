"""Compile the launches of an op for a GPU that is not there, and read what the machine code takes.

    with compile_only(90) as kernels:
        forward(torch.empty(..., device="meta"), ...)
    usage(kernels[0])

Needs NVIDIA's ptxas and cuobjdump, which Triton's wheels carry.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from . import launch

# Bytes of shared memory one program may use, by compute capability (CUDA C++ Programming Guide, table of features).
SHARED_LIMIT = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}


class Compiled(NamedTuple):
    """A kernel compiled for `capability` with the configuration of one launch."""

    name: str
    capability: int
    config: Any
    warps: int
    kernel: Any


class Usage(NamedTuple):
    """What one program takes: registers a thread, bytes of stack, local and shared memory, and its tensor-core code.

    spills counts loads and stores of local memory; matrix is HGMMA, HMMA, UTCHMMA or FFMA, with its count; atomics
    counts float read-modify-writes of global memory in the PTX (SASS has integer ones for barriers of its own).
    """

    registers: int
    stack: int
    local: int
    shared: int
    spills: int
    matrix: str
    atomics: int


class _AbsentGpu:
    """A driver that names its target and has no device: enough to specialise and compile."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        # Triton caches what it compiled under the number of the device: one number per architecture.
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


@contextmanager
def compile_only(capability: int) -> Iterator[list[Compiled]]:
    """Compile for `capability` (80, 90, 100, …) every launch made inside the block, and run none of them.

    Tensors may be on the meta device. Raises RuntimeError under TRITON_INTERPRET=1, where nothing can be compiled.
    """
    if launch.INTERPRETED:
        raise RuntimeError("compile_only needs the compiler; TRITON_INTERPRET=1 replaced it by the interpreter")
    compiled: list[Compiled] = []

    def compile_kernel(kernel: Any, programs: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        made = kernel.warmup(*arguments, grid=(programs,), **options)
        compiled.append(Compiled(kernel.__name__, capability, options["config"], options["num_warps"], made))

    previous = launch.intercept, launch.target
    launch.intercept, launch.target = compile_kernel, capability
    # reset_active would look for a device, and raise where there is none.
    active = driver._active
    driver.set_active(_AbsentGpu(capability))
    try:
        yield compiled
    finally:
        launch.intercept, launch.target = previous
        driver.set_active(active)


def usage(compiled: Compiled) -> Usage:
    """Read the resources of a compiled kernel from its cubin (cuobjdump) and its PTX."""
    assembled = compiled.kernel.asm
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(assembled["cubin"])
        report = _cuobjdump("--dump-resource-usage", cubin)
        sass = _cuobjdump("--dump-sass", cubin)
    fields = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report))
    return Usage(
        registers=int(fields["REG"]),
        stack=int(fields["STACK"]),
        local=int(fields["LOCAL"]),
        shared=compiled.kernel.metadata.shared,
        spills=len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        matrix=_matrix_instruction(sass),
        atomics=len(re.findall(r"^\s*(?:@\S+\s+)?(?:atom|red)\S*\.global\S*\.(?:f|bf)\d+", assembled["ptx"], re.M)),
    )


def _matrix_instruction(sass: str) -> str:
    for name in ("UTCHMMA", "HGMMA", "HMMA", "FFMA"):
        if count := len(re.findall(rf"\b{name}\b", sass)):
            return f"{count} {name}"
    return "none"


def _cuobjdump(flag: str, cubin: Path) -> str:
    tool = Path(os.path.dirname(triton.__file__)) / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, flag, cubin], capture_output=True, text=True, check=True).stdout
