"""What a reader needs to repeat an experiment's numbers."""

import platform

import torch


def environment() -> list[tuple[str, str]]:
    """Versions and threads, for the foot of a page."""
    from ... import __version__

    return [
        ("bayesattn-fast", __version__),
        ("torch", torch.__version__),
        ("python", platform.python_version()),
        ("threads", str(torch.get_num_threads())),
    ]
