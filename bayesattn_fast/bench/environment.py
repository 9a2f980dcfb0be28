"""What a timing depends on: the machine, the versions, the date; and which peers import here, and why others do not."""

import importlib
import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

VERSIONS = ("torch", "triton", "numpy", "hmmlearn", "dynamax", "jax", "mamba-ssm", "mambapy", "transformers")


def processor() -> str:
    """The CPU's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if "model name" in line:
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, str | int]:
    """What a CPU timing depends on, in four lines."""
    return {
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Machine, versions and date of a run, as plain data."""
    from .. import __version__

    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": device.type,
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": {"bayesattn-fast": __version__, "python": platform.python_version()}
        | {name: version for name in VERSIONS if (version := version_of(name))},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return found


def hardware(found: dict[str, Any]) -> str:
    """The part of an environment that decides whether two timings can be compared."""
    return found["gpu"]["name"] if "gpu" in found else f"{found['processor']}, {found['threads']} thread(s)"


def version_of(distribution: str) -> str | None:
    """Its version, None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
