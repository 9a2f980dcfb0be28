"""Fit a hidden Markov model by gradient: the exact evidence of posteriors.hmm_filter, climbed with L-BFGS.

    python examples/fit_hmm.py                  prints the log-likelihood per symbol beside the true model's
    python examples/fit_hmm.py --steps 300 --states 3 --symbols 6 --sequences 64 --length 100

Where hmmlearn is installed its Baum–Welch (EM) starts from the same matrices, and its likelihood is printed too.
Probabilities are softmaxes of free numbers, so every step stays a model.
"""

import argparse
from typing import NamedTuple

import torch
from torch import Tensor

from bayesattn_fast.posteriors import hmm_filter


class Model(NamedTuple):
    """transition (S, S), emission (S, O), initial (S,): rows sum to 1, float64."""

    transition: Tensor
    emission: Tensor
    initial: Tensor


def random_model(states: int, symbols: int, seed: int, sharpness: float = 2.0) -> Model:
    """Softmaxes of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(states, states), (states, symbols), (states,)]
    return Model(*((sharpness * torch.randn(s, generator=generator).double()).softmax(-1) for s in shapes))


def draw(model: Model, sequences: int, length: int, seed: int) -> Tensor:
    """Observations (B, T) int64 of the model."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.multinomial(model.initial, sequences, replacement=True, generator=generator)
    seen = []
    for _ in range(length):
        seen.append(torch.multinomial(model.emission[state], 1, generator=generator).squeeze(1))
        state = torch.multinomial(model.transition[state], 1, generator=generator).squeeze(1)
    return torch.stack(seen, 1)


def log_likelihood(model: Model, observations: Tensor) -> Tensor:
    """ln p of all observations, in nats; differentiable in the model."""
    found = hmm_filter(model.transition, model.emission, observations, initial=model.initial, validate=False)
    return found.log_evidence.sum()


def fit(start: Model, observations: Tensor, steps: int) -> Model:
    """The model after `steps` evaluations of L-BFGS at most, from `start`."""
    logits = [p.log().clone().requires_grad_() for p in start]
    optimizer = torch.optim.LBFGS(
        logits, max_iter=steps, max_eval=2 * steps, tolerance_grad=1e-9, tolerance_change=1e-12,
        history_size=20, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -log_likelihood(Model(*(x.softmax(-1) for x in logits)), observations) / observations.numel()
        value.backward()
        return value

    optimizer.step(loss)
    return Model(*(x.detach().softmax(-1) for x in logits))


def baum_welch(start: Model, observations: Tensor, iterations: int) -> Model | None:
    """hmmlearn's EM from `start`; None where hmmlearn is not installed."""
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        return None
    states, symbols = start.emission.shape
    em = CategoricalHMM(states, n_features=symbols, n_iter=iterations, tol=1e-8, init_params="", random_state=0)
    em.startprob_, em.transmat_, em.emissionprob_ = (
        p.numpy() for p in (start.initial, start.transition, start.emission)
    )
    em.fit(observations.reshape(-1, 1).numpy(), [observations.shape[1]] * len(observations))
    return Model(*(torch.from_numpy(p).double() for p in (em.transmat_, em.emissionprob_, em.startprob_)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("states", 3), ("symbols", 6), ("sequences", 64), ("length", 100), ("steps", 300), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    truth = random_model(given.states, given.symbols, given.seed)
    observations = draw(truth, given.sequences, given.length, given.seed + 1)
    start = random_model(given.states, given.symbols, given.seed + 2, sharpness=0.5)
    models = {
        "start": start,
        "truth": truth,
        "by gradient": fit(start, observations, given.steps),
        "Baum–Welch": baum_welch(start, observations, given.steps),
    }
    for name, model in models.items():
        if model is not None:
            value = float(log_likelihood(model, observations)) / observations.numel()
            print(f"{name:12} {value:.6f} nats a symbol")


if __name__ == "__main__":
    main()
