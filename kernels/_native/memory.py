"""Large results on large pages.

Memory that a process gets anew comes in pages of 4 KiB, each at the cost of a fault when it is first written: for an
output of tens of MiB that is as long as a kernel's own work. Where the system has transparent huge pages on request
(Linux, the usual setting), asking for them makes it hundreds of times fewer faults.
"""

import ctypes
import functools
import mmap
from collections.abc import Callable

from torch import Tensor

LEAST = 4 << 20
"""Bytes from which it pays: smaller blocks are mostly reused by the allocator, and a page takes 2 MiB."""


@functools.cache
def _advise() -> Callable[[int, int], int] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes, madvise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return lambda start, size: madvise(start, size, mmap.MADV_HUGEPAGE)


def fresh(tensor: Tensor) -> Tensor:
    """`tensor`, whose memory is about to be written for the first time; large ones on large pages. Never fails."""
    size = tensor.untyped_storage().nbytes()
    if size >= LEAST and (advise := _advise()):
        start = tensor.untyped_storage().data_ptr()
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        # A system that refuses goes on with small pages.
        advise(first, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE - first)
    return tensor
