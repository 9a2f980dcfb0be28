"""What watching attention costs: training steps without a record, with one every K steps, and with one every step.

    python -m bench.bench_watch                    bijection, 3 seeds, K 10
    python -m bench.bench_watch --tunnel hmm --every 5

A round is K steps of each in turn, so that a busy machine slows all of them; with one thread the time of the process
is counted, which other work does not take part in.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from bayesattn_fast.training.engine import Engine
from bayesattn_fast.training.presets import preset

from .interleaved import interleaved, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunnel", default="bijection")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    config = preset(options.tunnel, "quick", tuple(range(options.seeds)))

    def steps(every: int) -> Callable[[], None]:
        engine = Engine(replace(config, training=replace(config.training, watch_every=every)))

        def run() -> None:
            for _ in range(options.every):
                engine.update()

        return run

    contenders = {"unwatched": steps(0), f"every {options.every} steps": steps(options.every), "every step": steps(1)}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    timings = interleaved(contenders, rounds=options.rounds, budget_s=120, clock=clock)
    plain = timings["unwatched"].median
    for name, timing in timings.items():
        each = timing.median / options.every
        print(f"{options.tunnel} {name:16} {each:8.2f} ms a step  {timing.median / plain - 1:+.1%} of the time")


if __name__ == "__main__":
    main()
