"""The limits of this machine, measured in the same run: copying, matrix products, exponentials.

A case's floor is the longest of (bytes / copy rate), (operations / product rate), (exponentials / exp rate); its share
of the limit is floor / time. Copying is measured at several sizes, since what fits a cache is copied faster.
"""

import ctypes
import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..kernels._native import build
from .timing import Measure, choose

CPU_COPIES = tuple(2**k for k in (16, 18, 20, 22, 24, 26, 28))
GPU_COPIES = (2**30,)
EXP_LOOPS = 256
"""Exponentials of each number in registers on a GPU, where a single one would measure memory."""


@dataclass(frozen=True)
class Cost:
    """What the work takes at least: bytes read and written, multiplications and additions, exponentials and logs."""

    bytes: float
    operations: float = 0.0
    exps: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.operations + other.operations, self.exps + other.exps)


@dataclass(frozen=True)
class Floor:
    """The shortest time a cost allows, and what sets it: "copy", "arithmetic" or "exp"."""

    seconds: float
    limit: str


@dataclass(frozen=True)
class Limits:
    """copy: (bytes moved, bytes/s) from small to large; operations/s by dtype; exp/s in float32.

    Both are what torch reaches, or what a loop in registers does where a CPU makes more of that.
    """

    copy: tuple[tuple[int, float], ...]
    product: dict[str, float]
    exp: float

    def bandwidth(self, size: float) -> float:
        """Copy rate in bytes/s of the measured size nearest to `size` bytes, on a logarithmic scale."""
        return min(self.copy, key=lambda point: abs(math.log(point[0] / max(size, 1.0))))[1]

    def floor(self, cost: Cost, dtype: str) -> Floor:
        """The shortest time of `cost` with products in `dtype` ("float32" or "bfloat16")."""
        times = {
            "copy": cost.bytes / self.bandwidth(cost.bytes),
            "arithmetic": cost.operations / self.product.get(dtype, self.product["float32"]),
            "exp": cost.exps / self.exp,
        }
        limit = max(times, key=lambda name: times[name])
        return Floor(times[limit], limit)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def measure_limits(device: torch.device, threads: int) -> Limits:
    """All limits of `device`, a few seconds. On a CPU with as many threads as torch has."""
    measure = choose(device, threads)[1]
    sizes = GPU_COPIES if device.type == "cuda" else CPU_COPIES
    copies = tuple((size, _copy_rate(size, device, measure)) for size in sizes)
    side = 8192 if device.type == "cuda" else 1024
    products = {name: _product_rate(side, getattr(torch, name), device, measure) for name in ("float32", "bfloat16")}
    if device.type == "cpu":
        products["float32"] = max(products["float32"], _multiply_add_rate(measure))
    return Limits(copies, products, _exp_rate(device, measure))


def _rate(amount: float, run: Callable[[], object], measure: Measure, least_s: float = 0.15) -> float:
    """Amount a second: the median over calls of at least `least_s` seconds in all, and at least five."""
    run()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < least_s and len(times) < 2000):
        times.append(measure(run))
    return amount / max(statistics.median(times), 1e-9)


def _copy_rate(size: int, device: torch.device, measure: Measure) -> float:
    """`size` bytes in all, half of them read and half written; several copies a call where one is too short."""
    source = torch.ones(size // 8, device=device)
    target = torch.empty_like(source)
    repeats = max(1, 2**22 // size) if device.type == "cpu" else 1

    def run() -> None:
        for _ in range(repeats):
            target.copy_(source)

    return _rate(size * repeats, run, measure)


def _product_rate(side: int, dtype: torch.dtype, device: torch.device, measure: Measure) -> float:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return _rate(2.0 * side**3, lambda: a @ b, measure)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """limits.cpp, None without a compiler."""
    try:
        library = build.load(Path(__file__).with_name("limits.cpp"))
    except build.NativeUnavailable:
        return None
    library.multiply_add.argtypes = [ctypes.c_int64, ctypes.c_float, ctypes.c_int]
    library.exponentials.argtypes = [ctypes.c_int64, ctypes.c_int]
    library.operations_of_a_round.restype = ctypes.c_int64
    return library


def _multiply_add_rate(measure: Measure) -> float:
    """Operations a second in registers, 0 without a compiler: torch's products fall short of it on some CPUs."""
    library, rounds, threads = _library(), 200_000, torch.get_num_threads()
    if library is None:
        return 0.0
    amount = float(rounds * threads * library.operations_of_a_round())
    return _rate(amount, lambda: library.multiply_add(rounds, 0.5, threads), measure)


def _exp_rate(device: torch.device, measure: Measure) -> float:
    if device.type == "cuda":
        from .exp_rate import repeated_exponentials

        x = torch.randn(2**24, device=device)
        return _rate(float(x.numel() * EXP_LOOPS), lambda: repeated_exponentials(x, EXP_LOOPS), measure)
    x = torch.randn(2**14)  # in a cache, so that the function is measured and not the memory
    out = torch.empty_like(x)

    def run() -> None:
        for _ in range(64):
            torch.exp(x, out=out)

    of_torch = _rate(64.0 * x.numel(), run, measure)
    library, rounds, threads = _library(), 100_000, torch.get_num_threads()
    if library is None:
        return of_torch
    in_registers = _rate(64.0 * rounds * threads, lambda: library.exponentials(rounds, threads), measure)
    return max(of_torch, in_registers)
