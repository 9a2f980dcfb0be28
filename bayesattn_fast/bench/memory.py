"""Peak memory of one call: torch's own count on a GPU, the growth of the process on Linux, None elsewhere."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that one call holds at its highest above what was held before it, results included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        # Memory that was freed but kept would hide the growth: it goes back to the system first.
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5")  # starts the high-water mark anew
    except (OSError, AttributeError):
        return None
    before = _kib("VmRSS")
    run()
    return max(0, _kib("VmHWM") - before) * 1024


def _kib(field: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(field))
