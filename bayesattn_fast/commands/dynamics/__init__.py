"""bayesattn dynamics EXPERIMENT: how attention moves under gradient descent; one file for each experiment."""

import importlib

from ..parsing import known

EXPERIMENTS = {
    "em-vs-sgd": "the EM-like schedule against SGD and its controls, on the sticky chain",
    "toy": "five positions, two dimensions: routing, advantage and the paths of the values in one picture",
    "two-timescale": "when routing settles over the training of a run, and when values do, head by head",
}
EXAMPLES = """examples:
  bayesattn dynamics em-vs-sgd --authors-matrix
  bayesattn dynamics toy --seed 3
  bayesattn dynamics two-timescale runs/demo

bayesattn dynamics EXPERIMENT --help explains the flags of an experiment."""


def main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        listing = "\n".join(f"  {name:<13} {text}" for name, text in EXPERIMENTS.items())
        print(f"usage: bayesattn dynamics EXPERIMENT [flags]\n\nexperiments:\n{listing}\n\n{EXAMPLES}")
        return 0
    name = known(words[0], EXPERIMENTS, "experiment")
    module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
    return module.main(words[1:])
