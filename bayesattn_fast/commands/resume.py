"""bayesattn resume RUN: go on with an interrupted run, with the settings in its folder."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ..training.run import read_config
from .parsing import parse
from .train import RunFlags, fit_and_show


@dataclass(frozen=True)
class Resume:
    """Go on with an interrupted run to exactly the metrics of an uninterrupted one."""

    run: Positional[str]
    """Folder of the run."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one."""
    quiet: bool = False
    """Show the result only."""
    json: bool = False
    """Print the result as JSON."""


def main(words: list[str]) -> int:
    flags = parse(Resume, words, prog="bayesattn resume", description=Resume.__doc__ or "")
    config = read_config(Path(flags.run))
    return fit_and_show(
        config, RunFlags(out=flags.run, resume=True, device=flags.device, quiet=flags.quiet, json=flags.json)
    )
