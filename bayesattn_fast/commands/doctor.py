"""bayesattn doctor: versions, devices, compiler, cache folder, and which implementation serves each op, and why."""

import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass
from typing import Any

import torch

from .. import backends
from ..kernels._native import build
from .parsing import parse
from .results import print_json, print_tables


@dataclass(frozen=True)
class Doctor:
    """Versions, devices, compiler, cache folder, and which implementation serves each op, and why."""

    json: bool = False
    """Print everything as JSON."""


def main(words: list[str]) -> int:
    flags = parse(Doctor, words, prog="bayesattn doctor", description=Doctor.__doc__ or "")
    found = examine()
    if flags.json:
        print_json(found)
        return 0
    from rich import box
    from rich.table import Table

    single = {key: found[key] for key in ("devices", "threads", "compiler", "cache", "backend")}
    for key, value in {**found["versions"], **single}.items():
        print(f"{key:<16}{value}")
    table = Table("op", "CPU tensors", "CUDA tensors", box=box.SIMPLE)
    for op, served in found["ops"].items():
        table.add_row(op, served["cpu"], served["cuda"])
    print_tables(table)
    return 0


def examine() -> dict[str, Any]:
    """Everything the command prints, as plain data."""
    try:
        compiler = ", ".join(build.compiler())
    except build.NativeUnavailable as error:
        compiler = f"none: {error}; the reference implementation serves CPU tensors"
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "versions": {"bayesattn-fast": _version("bayesattn-fast"), "python": platform.python_version()}
        | {name: _version(name) for name in ("torch", "triton", "numpy", "transformers", "ray")},
        "devices": ", ".join(["cpu", *devices]),
        "threads": torch.get_num_threads(),
        "compiler": compiler,
        "cache": str(build.cache_folder()),
        "backend": backends.current(),
        "ops": {op: _served(op) for op in backends.ops()},
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "source tree" if name == "bayesattn-fast" else "not installed"


def _served(op: str) -> dict[str, str]:
    reasons = {kind: backends.unavailable(op, kind) for kind in ("cpu", "triton")}
    native = f"reference ({reasons['cpu']})" if reasons["cpu"] else "cpu (native)"
    if not torch.cuda.is_available():
        cuda = f"no CUDA device here ({'triton would serve' if not reasons['triton'] else reasons['triton']})"
    else:
        cuda = f"reference ({reasons['triton']})" if reasons["triton"] else "triton"
    return {"cpu": native, "cuda": cuda}
