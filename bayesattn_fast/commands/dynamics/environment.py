"""What a reader needs to repeat an experiment's numbers."""

import platform

import torch


def environment(device: torch.device | str = "cpu") -> list[tuple[str, str]]:
    """Versions, threads and device, for the foot of a page."""
    from ... import __version__

    return [
        ("bayesattn-fast", __version__),
        ("torch", torch.__version__),
        ("python", platform.python_version()),
        ("threads", str(torch.get_num_threads())),
        ("device", torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu"),
    ]
