"""bayesattn train TUNNEL: from nothing to a scored, reported run."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import tunnels
from ..training import PRESETS, Interrupted, RunConfig, fit, parse_seeds, preset
from ..training.phases import PhaseClock
from ..training.run import default_folder
from .parsing import UsageError, device_of, known, parse, value_of
from .progress import training_progress
from .results import show

EXAMPLES = """examples:
  bayesattn train bijection --seeds 3
  bayesattn train bijection --symbols 10 --pairs 9 --steps 4000
  bayesattn train hmm --model lstm --seeds 0:8 --out runs/hmm-lstm
  bayesattn train hmm --preset paper --precision bf16 --device cuda
  bayesattn train bijection --out runs/mine --resume"""


@dataclass(frozen=True)
class RunFlags:
    """Where the run goes and how it is shown."""

    seeds: str = "1"
    """How many seeds (3), a range (0:64) or a list (42,2024)."""
    preset: str = "quick"
    """Starting point of all other settings: quick or paper."""
    out: str = ""
    """Folder of the run; runs/TUNNEL-MODEL where nothing is named."""
    resume: bool = False
    """Go on from the checkpoint in the folder."""
    overwrite: bool = False
    """Replace the run in the folder."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one."""
    quiet: bool = False
    """Show the result only."""
    json: bool = False
    """Print the result as JSON."""
    profile: bool = False
    """Time the phases of a step and print the share of data, forward, backward and optimiser, on stderr."""


def main(words: list[str]) -> int:
    names = ", ".join(tunnels.TUNNELS)
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: bayesattn train TUNNEL [flags]\n\nTUNNEL is one of {names}.\n")
        print(f"{EXAMPLES}\n\nbayesattn train TUNNEL --help lists the flags of a tunnel.")
        return 0
    if words[0].startswith("-"):
        raise UsageError(f"train takes the tunnel first, then the flags; got {words[0]} (tunnels: {names})")
    tunnel, words = known(words[0], tunnels.TUNNELS, "tunnel"), words[1:]
    start = preset(tunnel, known(value_of(words, "--preset") or "quick", PRESETS, "preset"))
    about = f"Train an ensemble on the {tunnel} tunnel ({tunnels.TUNNELS[tunnel].primitive}).\n\n{EXAMPLES}"
    flags: Any = parse(_flags_from(start), words, prog=f"bayesattn train {tunnel}", description=about)
    config = RunConfig(flags.tunnel, flags.model, flags.training, parse_seeds(flags.run.seeds))
    return fit_and_show(config, flags.run)


def _flags_from(start: RunConfig) -> type:
    """The flags of one tunnel: of the run, the tunnel's sizes, the model's, the training's, starting from a preset."""
    parts = {"run": RunFlags(), "tunnel": start.tunnel, "model": start.model, "training": start.training}
    fields = [(name, type(part), dataclasses.field(default=part)) for name, part in parts.items()]
    return dataclasses.make_dataclass("Train", fields, frozen=True)


def fit_and_show(config: RunConfig, flags: RunFlags) -> int:
    """Train, write the report, print the table; exit code 130 after ^C."""
    folder = Path(flags.out) if flags.out else default_folder(config.tunnel.name, config.model.model)
    device = device_of(flags.device)
    clock = PhaseClock(device) if flags.profile else None
    try:
        with training_progress(config, folder, quiet=flags.quiet or flags.json) as on_step:
            run = fit(
                *(config, folder),
                resume=flags.resume,
                overwrite=flags.overwrite,
                device=device,
                on_step=on_step,
                clock=clock,
            )
    except Interrupted as stop:
        done = f"stopped after step {stop.step} of {config.training.steps} and saved"
        print(f"bayesattn: {done}; go on with: bayesattn resume {stop.folder}", file=sys.stderr)
        return 130
    if clock:
        print(f"bayesattn: {clock}", file=sys.stderr)
    show(run.folder, as_json=flags.json)
    return 0
