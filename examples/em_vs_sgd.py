"""Is it EM, or is it a larger rate? One attention head on the sticky chain, seeds and schedules all at once.

    python examples/em_vs_sgd.py               seconds on a CPU
    python examples/em_vs_sgd.py --seeds 64 --steps 1000

"EM-like" moves the values ten times faster than the rest. The controls give the same factor to another matrix. Printed
is the step at which each schedule reaches the loss that plain SGD ends with; `bayesattn dynamics em-vs-sgd` is the
whole experiment, with held-out chains, each schedule at its best rate, and intervals.
"""

import argparse

import torch

import bayesattn_fast as ba
from bayesattn_fast.tunnels import Markov

RATE, FACTOR = 0.01, 10.0
# Factors of the rates of w_q, w_k, w_v, w_out.
SCHEDULES = {
    "sgd": (1, 1, 1, 1),
    "em-like: values": (1, 1, FACTOR, 1),
    "queries and keys": (FACTOR, FACTOR, 1, 1),
    "readout": (1, 1, 1, FACTOR),
    "all": (FACTOR, FACTOR, FACTOR, FACTOR),
}


def losses(seeds: int, length: int, steps: int) -> dict[str, torch.Tensor]:
    """Training loss (E, steps + 1) in nats of every schedule, each from the same data and first weights."""
    data = Markov(chain=length, authors_matrix=True).sample(range(seeds), 0, 1)
    x, targets = data.inputs[:, 0], data.targets[:, 0]  # (E, N, 20), (E, N)
    generator = torch.Generator().manual_seed(0)
    weights = [0.1 * torch.randn(seeds, *s, generator=generator) for s in ((20, 10), (20, 10), (20, 15), (15, 8))]
    found = {}
    for name, factors in SCHEDULES.items():
        rates = [RATE * factor for factor in factors]
        found[name] = ba.train_single_head(x, targets, *weights, rates=rates, steps=steps, record_every=steps).loss
    return found


def first_below(loss: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """The first step (E,) at which each seed's loss is at its threshold or below."""
    return (loss <= threshold[:, None]).double().argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("seeds", 8), ("length", 500), ("steps", 600)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    found = losses(given.seeds, given.length, given.steps)
    goal = found["sgd"][:, -1]
    print(
        f"{given.seeds} seeds, chains of {given.length}, loss of SGD after {given.steps} steps: {goal.mean():.3f} nats"
    )
    for name, loss in found.items():
        steps = first_below(loss, goal).double()
        print(
            f"{name:18} there at step {steps.mean():5.0f} on average, {given.steps / steps.mean():4.1f} times as fast"
        )


if __name__ == "__main__":
    main()
