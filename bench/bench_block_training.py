"""Training speed of the sequence models at equal width and depth, on the quick preset of a task.

    python -m bench.bench_block_training                  hmm: transformer, mamba and lstm
    python -m bench.bench_block_training --tunnel recall --rounds 40

One optimiser step of each in turn, so that a busy machine slows all of them; with one thread the time of the process
is counted, which other work does not take part in.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bayesattn_fast.training.engine import Engine
from bayesattn_fast.training.presets import preset

from .interleaved import interleaved, machine

MODELS = ("transformer", "mamba", "lstm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunnel", default="hmm")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all rows here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    config = preset(options.tunnel, "quick")
    engines = {name: Engine(replace(config, model=replace(config.model, model=name))) for name in MODELS}
    steps: dict[str, Callable[[], object]] = {name: engine.update for name, engine in engines.items()}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    timings = interleaved(steps, rounds=options.rounds, budget_s=120, clock=clock)
    batch = engines["transformer"].sample()
    tokens = batch.inputs.shape[0] * batch.inputs.shape[1] * batch.inputs.shape[2]
    rows = []
    for name, timing in timings.items():
        rate = 1e3 * tokens / timing.median
        share = timings["transformer"].median / timing.median
        rows.append({"model": name, "tokens_per_s": rate, "share_of_transformer": share, **asdict(timing)})
        print(f"{options.tunnel} {name:12} {rate:10,.0f} tokens/s  {timing.median:7.1f} ms a step  {share:.0%}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
