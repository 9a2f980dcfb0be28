"""Which implementation an op uses: `reference` (plain PyTorch), `cpu` (native), `triton` (CUDA).

`auto`, the default, takes the native kernels for CPU tensors and Triton for CUDA tensors, and falls back to the
reference once, with the reason. A back end chosen by name raises where it cannot run. The choice is per process:
backward passes run in other threads and must follow the forward.
"""

import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

BACKENDS = ("auto", "reference", "cpu", "triton")
KERNELS = Path(__file__).parent / "kernels"


class BackendUnavailable(RuntimeError):
    """A back end was chosen by name and cannot run here."""


def _checked(name: str, origin: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{origin} must be one of {', '.join(BACKENDS)}; got {name!r}")
    return name


_forced = _checked(os.environ.get("BAYESATTN_BACKEND") or "auto", "BAYESATTN_BACKEND")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Force one back end for every op inside the block: "reference", "cpu", "triton" or "auto"."""
    global _forced
    previous, _forced = _forced, _checked(name, "backend")
    try:
        yield
    finally:
        _forced = previous


def current() -> str:
    """The back end in force: "auto" unless BAYESATTN_BACKEND or backend(...) says otherwise."""
    return _forced


def ops() -> list[str]:
    """Names of the ops: the folders of kernels/ that hold a reference."""
    return sorted(folder.parent.name for folder in KERNELS.glob("*/reference.py"))


@functools.cache
def unavailable(op: str, implementation: str) -> str | None:
    """Why `implementation` of `op` cannot run on this machine, or None where it can."""
    folder = KERNELS / op
    if implementation == "cpu":
        from bayesattn_fast.kernels._native import build

        if not (folder / "native.cpp").exists():
            return "has no native kernel"
        try:
            build.load(folder / "native.cpp")
        except build.NativeUnavailable as error:
            return str(error)
    if implementation == "triton":
        if not any(path.name == "forward.py" for path in folder.glob("*.py")):
            return "has no Triton kernel"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
    return None


def resolve(op: str, device: torch.device) -> str:
    """The implementation that serves `op` on `device`: "reference", "cpu" or "triton".

    Raises BackendUnavailable when a back end forced by name cannot serve it.
    """
    native = "triton" if device.type == "cuda" else "cpu"
    if _forced == "reference":
        return "reference"
    if _forced == "auto":
        reason = unavailable(op, native)
        if reason is None:
            return native
        _warn_once(op, native, reason)
        return "reference"
    if _forced != native and not (_forced == "triton" and os.environ.get("TRITON_INTERPRET") == "1"):
        raise BackendUnavailable(
            f"back end {_forced!r} cannot take {op} on {device.type} tensors; choose 'auto', 'reference' or {native!r}"
        )
    if reason := unavailable(op, _forced):
        raise BackendUnavailable(f"back end {_forced!r} cannot take {op}: {reason}")
    return _forced


@functools.cache
def _warn_once(op: str, implementation: str, reason: str) -> None:
    # An op without such a kernel is a fact of the package, not a fault of the machine: nothing to warn about.
    if not reason.startswith("has no"):
        warnings.warn(f"{op}: the {implementation} back end is off ({reason}); the reference serves", stacklevel=4)
