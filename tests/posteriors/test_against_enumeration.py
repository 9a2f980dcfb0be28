"""Every posterior equals the enumeration of its hypotheses (or the direct formula) to 1e-10 in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bayesattn_fast.posteriors import (
    bijection_predictive,
    hmm_filter,
    markov_predictive,
    recall_predictive,
    regression_predictive,
)
from tests import oracles
from tests.closeness import assert_close

Generator = np.random.Generator


@pytest.fixture
def rng() -> Generator:
    return np.random.default_rng(7)


def close(actual: torch.Tensor, exact: np.ndarray | list, name: str = "result") -> None:
    assert_close(actual, torch.as_tensor(np.asarray(exact)), 1e-10, name)


@pytest.mark.parametrize("repeats", [False, True])
def test_bijection_equals_the_count_over_all_permutations(rng: Generator, repeats: bool) -> None:
    symbols, batch, length = 5, 12, 8 if repeats else 5
    pi = np.array([rng.permutation(symbols) for _ in range(batch)])
    keys = np.array([rng.integers(0, symbols, length) if repeats else rng.permutation(symbols) for _ in range(batch)])
    values = np.take_along_axis(pi, keys, 1)
    result = bijection_predictive(torch.from_numpy(keys), torch.from_numpy(values), symbols)
    exact = np.array([oracles.bijection(k, v, symbols) for k, v in zip(keys, values, strict=True)])
    close(result.predictive, exact)
    close(result.entropy, oracles.entropy_bits(exact))
    # Every row is one of 5! permutations, seen through the distinct keys alone.
    distinct = [len(set(row)) for row in keys]
    close(result.log_evidence, [math.lgamma(symbols - n + 1) - math.lgamma(symbols + 1) for n in distinct])


@pytest.mark.parametrize("shared", [False, True])
def test_hmm_filter_equals_the_sum_over_all_paths(rng: Generator, shared: bool) -> None:
    batch, states, symbols, length = 4, 3, 4, 6
    transition = rng.dirichlet(np.ones(states), (batch, states))
    emission = rng.dirichlet(np.ones(symbols), (batch, states))
    if shared:
        transition[:], emission[:] = transition[0], emission[0]
    initial = rng.dirichlet(np.ones(states), batch)
    observations = rng.integers(-1, symbols, (batch, length))
    matrices = [torch.from_numpy(m[0] if shared else m) for m in (transition, emission)]
    result = hmm_filter(*matrices, torch.from_numpy(observations), initial=torch.from_numpy(initial))
    for b in range(batch):
        posterior, evidence = oracles.hmm(transition[b], emission[b], initial[b], observations[b].tolist())
        close(result.posterior[b], posterior)
        close(result.predictive[b], posterior @ transition[b] @ emission[b])
        close(result.entropy[b], oracles.entropy_bits(posterior))
        close(result.log_evidence[b], evidence)


def test_hmm_first_posterior_has_no_transition_before_it() -> None:
    transition = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    emission = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    posterior = hmm_filter(transition, emission, torch.tensor([[0]])).posterior
    close(posterior, [[[0.9 / 1.1, 0.2 / 1.1]]])


def test_ragged_hmm_sequences_equal_the_same_sequences_cut_short(rng: Generator) -> None:
    transition, emission = (torch.from_numpy(rng.dirichlet(np.ones(3), (5, 3))) for _ in range(2))
    observations = torch.from_numpy(rng.integers(0, 3, (5, 9)))
    lengths = torch.tensor([1, 9, 4, 7, 2])
    ragged = hmm_filter(transition, emission, observations, lengths=lengths)
    for b, n in enumerate(lengths.tolist()):
        alone = hmm_filter(transition[b], emission[b], observations[b : b + 1, :n])
        for name in ("posterior", "predictive", "entropy"):
            field = getattr(ragged, name)[b]
            assert torch.equal(field[:n], getattr(alone, name)[0])
            assert (field[n:] == 0).all()
        close(ragged.log_evidence[b], alone.log_evidence[0].numpy())


def test_markov_predictive_equals_the_sum_over_all_paths(rng: Generator) -> None:
    states, d, length, noise = 3, 2, 6, 0.7
    means, transition = rng.normal(size=(states, d)), rng.dirichlet(np.ones(states), states)
    initial, inputs = rng.dirichlet(np.ones(states)), rng.normal(size=(2, length, d))
    result = markov_predictive(*map(torch.from_numpy, (inputs, means, transition)), noise=noise,
                               initial=torch.from_numpy(initial))  # fmt: skip
    for b in range(2):
        squared = ((inputs[b][:, None] - means) ** 2).sum(-1)
        likelihood = np.exp(-0.5 * squared / noise**2) / (2 * math.pi * noise**2) ** (d / 2)
        posterior, evidence = oracles.paths(transition, likelihood, initial)
        close(result.posterior[b], posterior)
        close(result.predictive[b], posterior @ transition)
        close(result.entropy[b], oracles.entropy_bits(posterior @ transition))
        close(result.log_evidence[b], evidence)


def test_markov_filter_does_not_lose_far_inputs_to_underflow() -> None:
    """A start that excludes the nearest mean leaves likelihoods of e^−5000 beside 1."""
    means = torch.tensor([[0.0], [100.0], [101.0]], dtype=torch.float64)
    result = markov_predictive(
        torch.zeros(1, 1, 1).double(), means, torch.eye(3).double(), initial=torch.tensor([0.0, 0.5, 0.5]).double()
    )
    odds = math.exp(-(101**2 - 100**2) / 2)
    close(result.posterior, [[[0, 1 / (1 + odds), odds / (1 + odds)]]])
    close(result.log_evidence, [-5000 - 0.5 * math.log(2 * math.pi) + math.log(0.5 * (1 + odds))])


def test_regression_equals_the_inverted_precision_and_the_joint_normal(rng: Generator) -> None:
    x, y = rng.normal(size=(3, 12, 4)), rng.normal(size=(3, 12))
    result = regression_predictive(torch.from_numpy(x), torch.from_numpy(y), tau=1.3, sigma=0.4)
    for b in range(3):
        mean, variance = oracles.regression(x[b], y[b], 1.3, 0.4)
        close(result.mean[b], mean)
        close(result.variance[b], variance)
        close(result.log_evidence[b], oracles.joint_normal_log_evidence(x[b], y[b], 1.3, 0.4))


def test_binned_predictive_equals_quadrature_in_every_bin_however_unlikely(rng: Generator) -> None:
    x, y = rng.normal(size=(1, 5, 2)), rng.normal(size=(1, 5))
    result = regression_predictive(torch.from_numpy(x), torch.from_numpy(y), tau=1.0, sigma=0.2, bins=16)
    limit = 3 * math.sqrt(0.2**2 + 2)
    edges = np.linspace(-limit, limit, 17)[1:-1]
    for k in range(5):
        exact = oracles.binned_normal(float(result.mean[0, k]), float(result.variance[0, k]), edges.tolist())
        ratio = result.predictive[0, k].numpy() / exact
        assert np.abs(ratio - 1).max() < 1e-9, f"bin {np.abs(ratio - 1).argmax()} at k = {k}"
        close(result.predictive[0, k], exact)
    close(result.entropy, oracles.entropy_bits(result.predictive.numpy()))
    close(result.predictive.sum(-1), np.ones((1, 5)))


def test_recall_equals_the_count_over_all_injections() -> None:
    stored_keys, stored_values, queries = [[4, 0, 7]], [[2, 5, 1]], [[0, 3, 7, 4, 6]]
    result = recall_predictive(*map(torch.tensor, (stored_keys, stored_values, queries)), 6)
    exact = np.array([[oracles.recall(stored_keys[0], stored_values[0], q, 6) for q in queries[0]]])
    close(result.predictive, exact)
    close(result.entropy, oracles.entropy_bits(exact))


Posterior = Callable[[torch.dtype], tuple[torch.Tensor, ...]]


def hmm_case(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(0)
    matrices = [torch.from_numpy(rng.dirichlet(np.ones(5), (7, 5))).to(dtype) for _ in range(2)]
    return hmm_filter(*matrices, torch.from_numpy(rng.integers(0, 5, (7, 40))))


def regression_case(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(7, 32, 4)), rng.normal(size=(7, 1, 4))
    y = (x * w).sum(-1) + 0.5 * rng.normal(size=(7, 32))
    return regression_predictive(torch.from_numpy(x).to(dtype), torch.from_numpy(y).to(dtype))


def markov_case(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(7, 32, 4)), rng.normal(size=(5, 4)), rng.dirichlet(np.ones(5), 5)
    return markov_predictive(*(torch.from_numpy(a).to(dtype) for a in arrays))


@pytest.mark.parametrize("case", [hmm_case, regression_case, markov_case])
def test_float32_results_keep_their_dtype_and_single_precision(case: Posterior) -> None:
    for single, double in zip(case(torch.float32), case(torch.float64), strict=True):
        assert single.dtype == torch.float32
        assert_close(single, double, 2e-5)
