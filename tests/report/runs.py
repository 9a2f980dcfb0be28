"""Run folders with every file a report reads, scored by the real evaluation on the urn tunnel."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bayesattn_fast.evaluation import evaluate
from bayesattn_fast.storage import write_json, write_table
from tests.evaluation.urn import Urn


def noisy(tunnel: Urn, noise: float) -> Callable[[Tensor], Tensor]:
    """The exact posterior with `noise` on its logits, another in every seed, and a little mass on the impossible."""

    def predict(inputs: Tensor) -> Tensor:
        logits = torch.log(tunnel.predictive(inputs) + 0.02 * noise)
        generator = torch.Generator().manual_seed(1)
        scale = 1 + torch.arange(inputs.shape[0]).view(-1, 1, 1, 1) / 4
        return logits + noise * scale * torch.randn(logits.shape, generator=generator)

    return predict


def make_run(
    folder: Path,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    noise: float = 0.1,
    tunnel: Urn | None = None,
    longer: int | None = None,
    diverged: dict[int, int] | None = None,
    sequences: int = 60,
) -> Path:
    """A run of 400 steps whose noise falls to `noise`; returns its folder."""
    tunnel = tunnel or Urn()
    folder.mkdir(parents=True)
    schedule = {step: noise + 2.5 * math.exp(-step / 60) for step in (0, 100, 200, 300)} | {400: noise}
    evaluations = {
        step: evaluate(noisy(tunnel, level), tunnel, seeds, sequences=sequences, diverged=diverged)
        for step, level in schedule.items()
    }
    rows = [row for step, evaluation in evaluations.items() for row in evaluation.to_rows(step)]
    if longer:
        long = tunnel.with_length(longer)
        trained = len(tunnel.positions)
        rows += evaluate(noisy(long, 4 * noise), long, seeds, sequences=sequences, trained=trained).to_rows(400)
    write_table(folder / "metrics.parquet", rows)
    write_table(folder / "losses.parquet", loss_rows(seeds, float(evaluations[400].per_seed("bayes_floor")[0])))
    config = {
        "tunnel": {"name": "urn", "colours": tunnel.colours, "draws": tunnel.draws},
        "model": {"model": "transformer", "layers": 2, "d_model": 64, "heads": 2},
        "training": {"steps": 400, "batch": 64, "lr": 2e-3},
        "seeds": list(seeds),
        "command": "bayesattn train urn --seeds 3",
        "environment": {"python": "3.12.1", "torch": "2.13.0", "processor": "Some <CPU> & co"},
    }
    write_json(folder / "config.json", config)
    state = {"step": 400, "finished": True, "diverged": {str(s): at for s, at in (diverged or {}).items()}}
    write_json(folder / "state.json", state)
    return folder


def loss_rows(seeds: tuple[int, ...], floor: float) -> list[dict[str, float]]:
    """Losses of noisy batches that fall towards a noisy floor."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for step in (1, *range(10, 401, 10)):
        for seed in seeds:
            wobble, batch_floor = (0.01 * torch.randn(2, generator=generator)).tolist()
            gap = 0.6 * math.exp(-step / (50 + 5 * seed)) + 0.004
            head = {"seed": seed, "step": step, "lr": 2e-3, "gradient_norm": 1.0}
            rows.append(head | {"loss": floor + batch_floor + gap + wobble / 4, "floor": floor + batch_floor})
    return rows
