"""bayesattn eval RUN: score a trained run again, on more sequences or on longer ones."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ..evaluation import evaluate
from ..training import load_engine
from ..training.run import read_state
from .parsing import UsageError, device_of, parse
from .results import print_json, print_tables

EXAMPLES = """examples:
  bayesattn eval runs/hmm-transformer --sequences 10000
  bayesattn eval runs/hmm-lstm --scored 30        30 observations, whatever it was trained on"""


@dataclass(frozen=True)
class Eval:
    """Score a trained run again on held-out sequences."""

    run: Positional[str]
    """Folder of the run."""
    sequences: int = 2048
    """Held-out sequences of every seed."""
    scored: int = 0
    """Scored positions; 0 means as many as in training, more tests length generalisation."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one."""
    json: bool = False
    """Print the numbers as JSON."""


def main(words: list[str]) -> int:
    from ..report import length_table, result_table, summary_json

    flags = parse(Eval, words, prog="bayesattn eval", description=f"{Eval.__doc__}\n\n{EXAMPLES}")
    if flags.sequences < 1 or flags.scored < 0:
        raise UsageError("--sequences must be at least 1 and --scored at least 0")
    folder = Path(flags.run)
    engine = load_engine(folder, device_of(flags.device))
    tunnel = engine.config.tunnel
    longer = tunnel.with_length(flags.scored) if flags.scored else tunnel
    evaluation = evaluate(
        engine.predictor(longer),
        longer,
        engine.config.seeds,
        sequences=flags.sequences,
        trained=len(tunnel.positions),
        device=engine.device,
        diverged={int(seed): step for seed, step in read_state(folder)["diverged"].items()},
    )
    rows = evaluation.to_rows(step=engine.step)
    if flags.json:
        print_json(summary_json(rows))
        return 0
    title = (
        f"{engine.config.model.model} on {tunnel.name}, {len(longer.positions)} scored positions, step {engine.step}"
    )
    print_tables(result_table(rows, title=title), length_table(rows))
    return 0
