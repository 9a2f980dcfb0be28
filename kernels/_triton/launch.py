"""One way to launch a kernel: it fixes the options that must not drift, and tells tests what ran.

`launch` sets enable_fp_fusion itself, because the compiler's default changes between Triton releases and with it the
bits of the results. Under `recorded()` every launch is noted. Under `compile.compile_only()` nothing runs: the very
launch a GPU would get is compiled for a chosen architecture instead, so that tests cannot drift from the launchers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import triton

# Fixed when a kernel's module is imported: triton.jit then makes functions that run in NumPy instead of compiling.
INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
# A launch takes at most this many programs: grid x; y and z stop at 65,535 and are not used.
MAX_PROGRAMS = 2**31 - 1


# Programs that keep every multiprocessor of a large GPU busy.
PROGRAMS = 256


class Resources(NamedTuple):
    """What a program is given: warps, stages of its software pipeline, and a cap on registers a thread.

    ptxas may spill a few registers so that one more program fits a multiprocessor; a cap of 255 stops it from trying.
    """

    warps: int
    stages: int
    registers: int | None = None


class Launch(NamedTuple):
    """A kernel that ran: its name, how many programs, what each was given, and its compile-time configuration."""

    kernel: str
    programs: int
    resources: Resources
    config: Any


_records: list[list[Launch]] = []
# Set by compile.compile_only: what is called in place of a launch, and the compute capability it compiles for.
intercept: Callable[..., None] | None = None
target: int | None = None


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Collect the launches made inside the block, in order, in the list it yields."""
    record: list[Launch] = []
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def rows_per_program(rows: int, fit: int) -> int:
    """A power of two of rows, at most `fit`, and fewer where a small batch would otherwise leave a GPU idle."""
    return min(1 << (max(1, fit).bit_length() - 1), triton.next_power_of_2(max(1, triton.cdiv(rows, PROGRAMS))))


def launch(
    kernel: Any, programs: int, *arguments: Any, config: Any, resources: Resources, device: torch.device
) -> None:
    """Run `kernel` on a flat grid of `programs`, with `config` as its compile-time argument; nothing where that is 0.

    Raises ValueError when the grid is too large, RuntimeError when the tensors are not where the kernel can run.
    """
    if programs == 0:
        return
    if programs > MAX_PROGRAMS:
        raise ValueError(f"{kernel.__name__} would need {programs} programs; one launch takes at most {MAX_PROGRAMS}")
    for record in _records:
        record.append(Launch(kernel.__name__, programs, resources, config))
    options = {"config": config, "num_warps": resources.warps, "num_stages": resources.stages, "enable_fp_fusion": True}
    if resources.registers is not None:
        options["maxnreg"] = resources.registers
    if intercept is not None:
        intercept(kernel, programs, arguments, options)
        return
    if device.type != "cuda" and not INTERPRETED:
        raise RuntimeError(
            f"{kernel.__name__} is a GPU kernel and its tensors are on {device.type}; move them to a CUDA device, "
            "or set TRITON_INTERPRET=1 before Triton is imported to run it, slowly, in the interpreter"
        )
    # Triton launches on the current device, whichever holds the tensors.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[(programs,)](*arguments, **options)


def architecture(device: torch.device) -> int:
    """The compute capability to choose tiles for: the device's, the compiler's target, or 90 in the interpreter."""
    if target is not None:
        return target
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return 10 * major + minor
    return 90
