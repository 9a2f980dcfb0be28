"""The main job in one call: what `bayesattn train` does, from Python."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .training import Run, RunConfig, TrainingConfig, fit, parse_seeds, preset
from .training.lifecycle import OnStep
from .training.run import default_folder
from .training.settings import configure
from .tunnels import TUNNELS, Tunnel


def train(
    tunnel: str | Tunnel,
    *,
    preset_name: str = "quick",
    seeds: int | str | Iterable[int] = 1,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: torch.device | str | None = None,
    on_step: OnStep | None = None,
    **settings: Any,
) -> Run:
    """Train an ensemble on a wind tunnel, score it against the exact posterior, and keep the run in a folder.

    tunnel: "bijection", "hmm", "regression", "recall", "markov", one of your own by its name, or a tunnel itself,
    `ba.tunnels.Bijection(symbols=5, pairs=5)`; seeds: a count, "a:b", or the seeds themselves; settings: any setting of
    the tunnel, the model or the training, by its command-line name (`symbols=8`, `model="lstm"`, `steps=500`).
    Raises ValueError naming the setting at fault; ^C raises Interrupted, once the run is saved.
    """
    name = tunnel if isinstance(tunnel, str) else tunnel.name
    if not isinstance(tunnel, str) and TUNNELS.get(name) is not type(tunnel):
        raise ValueError(f"the tunnel {name!r} is not registered; put @register_tunnel before {type(tunnel).__name__}")
    config = preset(name, preset_name, parse_seeds(seeds))
    config = configure(config if isinstance(tunnel, str) else replace(config, tunnel=tunnel), settings)
    folder = Path(out) if out is not None else default_folder(name, config.model.model)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return fit(config, folder, resume=resume, overwrite=overwrite, device=device, on_step=on_step)


__all__ = ["Run", "RunConfig", "TrainingConfig", "configure", "train"]
