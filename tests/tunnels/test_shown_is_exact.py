"""The predictive of every tunnel follows, by the oracles, from what the sequence shows and from nothing else."""

import numpy as np
import pytest
import torch

from bayesattn_fast.tunnels import Bijection, Hmm, Markov, Recall, Regression
from tests import oracles

SEQUENCES = 6


def differs(actual: torch.Tensor, exact: np.ndarray) -> float:
    """Largest difference; float32 storage costs up to 6e-8."""
    return float(np.abs(actual.double().numpy() - exact).max())


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize(("separator", "shared"), [(False, False), (True, False), (False, True), (True, True)])
def test_bijection_tokens_are_pairs_of_a_bijection(with_replacement: bool, separator: bool, shared: bool) -> None:
    tunnel = Bijection(5, 5, with_replacement=with_replacement, separator=separator, shared_symbols=shared)
    batch = tunnel.sample([0], 0, SEQUENCES)
    for tokens, targets, predictive in zip(batch.inputs[0], batch.targets[0], batch.predictive[0], strict=True):
        keys = tokens[list(tunnel.positions)].tolist()
        shown = tokens[[p + 1 for p in tunnel.positions[:-1]]] - (0 if shared else 5)
        assert shown.tolist() == targets[:-1].tolist()
        assert differs(predictive, oracles.bijection(keys, targets.tolist(), 5)) < 1e-7
        if not with_replacement:
            assert len(set(keys)) == 5
        if separator:
            assert (tokens[2::3] == (5 if shared else 10)).all()


def test_default_bijection_layout_is_keys_then_values_from_v_on() -> None:
    tunnel = Bijection()
    assert (tunnel.length, tunnel.vocabulary, tunnel.positions) == (37, 40, tuple(range(0, 37, 2)))
    tokens = tunnel.sample([0], 0, 50).inputs
    assert tokens[..., 0::2].max() < 20
    assert tokens[..., 1::2].min() >= 20


def read_header(tokens: list[int], states: int, symbols: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Matrices and observations of an HMM sequence, token by token."""
    stream = iter(tokens)
    assert next(stream) == 96
    transition = np.array([[(next(stream) + 5) / 100 for _ in range(states)] for _ in range(states)])
    assert next(stream) == 97
    emission = np.array([[(next(stream) + 5) / 100 for _ in range(symbols)] for _ in range(states)])
    assert next(stream) == 98
    rest = list(stream)
    assert set(rest[0::2]) == {99}
    return transition, emission, [token - 100 for token in rest[1::2]]


@pytest.mark.parametrize("answer", ["state", "observation"])
def test_hmm_header_and_observations_give_the_predictive(answer: str) -> None:
    tunnel = Hmm(states=3, symbols=4, observations=6, answer=answer)
    batch = tunnel.sample([0], 0, SEQUENCES)
    for tokens, predictive in zip(batch.inputs[0].tolist(), batch.predictive[0], strict=True):
        transition, emission, observations = read_header(tokens, 3, 4)
        assert np.allclose(transition.sum(1), 1)
        assert np.allclose(emission.sum(1), 1)
        posterior, _ = oracles.hmm(transition, emission, np.ones(3) / 3, observations)
        exact = posterior if answer == "state" else posterior @ transition @ emission
        assert differs(predictive, exact) < 1e-7


def test_hmm_layout_is_that_of_the_paper() -> None:
    tunnel = Hmm(observations=20)
    assert (tunnel.header, tunnel.length, tunnel.vocabulary) == (53, 93, 105)
    assert tunnel.positions == tuple(54 + 2 * t for t in range(20))


def test_hmm_reference_filters_are_filters_of_what_they_may_see() -> None:
    """The one-step filter sees one observation under the propagated prior; window w restarts w observations ago."""
    tunnel = Hmm(states=3, symbols=4, observations=7)
    batch = tunnel.sample([0], 0, SEQUENCES)
    predictors = tunnel.reference_predictors(batch)
    assert list(predictors) == ["one-step filter", "window 1", "window 2", "window 3", "window 5"]
    for b, tokens in enumerate(batch.inputs[0].tolist()):
        transition, emission, observations = read_header(tokens, 3, 4)
        for t in range(7):
            hidden = [-1] * t + [observations[t]]
            blind = oracles.hmm(transition, emission, np.ones(3) / 3, hidden)[0][-1]
            assert differs(predictors["one-step filter"][0, b, t], blind) < 1e-7
            for w in (1, 2, 3, 5):
                recent = observations[max(0, t - w + 1) : t + 1]
                restarted = oracles.hmm(transition, emission, np.ones(3) / 3, recent)[0][-1]
                assert differs(predictors[f"window {w}"][0, b, t], restarted) < 1e-7


def test_regression_inputs_carry_flags_and_give_the_binned_predictive() -> None:
    tunnel = Regression(dimensions=3, pairs=6, tau=0.8, sigma=0.3, bins=9)
    batch = tunnel.sample([0], 0, SEQUENCES)
    edges = tunnel.edges().numpy()
    prior = tunnel.reference_predictors(batch)["prior predictive"]
    for b, inputs in enumerate(batch.inputs[0].double().numpy()):
        x, y = inputs[0::2, :3], inputs[1::2, 3]
        assert (inputs[0::2, 3:] == [0, 1, 0]).all()
        assert (inputs[1::2, :3] == 0).all()
        assert (inputs[1::2, 4:] == [0, 1]).all()
        assert (np.searchsorted(edges, y, side="right") == batch.targets[0, b, :-1].numpy()).all()
        mean, variance = oracles.regression(x, np.append(y, 0.0), 0.8, 0.3)
        for k in range(6):
            assert differs(batch.predictive[0, b, k], oracles.binned_normal(mean[k], variance[k], edges)) < 1e-7
            unseen = oracles.binned_normal(0.0, 0.3**2 + 0.8**2 * x[k] @ x[k], edges)
            assert differs(prior[0, b, k], unseen) < 1e-7


@pytest.mark.parametrize("score_slot", [False, True])
def test_recall_tokens_store_pairs_and_ask_for_keys(score_slot: bool) -> None:
    tunnel = Recall(pairs=3, symbols=6, fillers=5, queries=2, p_unseen=0.5, score_slot=score_slot)
    batch = tunnel.sample([0], 0, 40)
    unseen = 0
    for b, tokens in enumerate(batch.inputs[0].tolist()):
        assert tokens[0:12:4] == [0] * 3
        assert tokens[2:12:4] == [1] * 3
        assert tokens[12:17] == [2] * 5
        assert [tokens[i] for i in (17, 19, 20, 21, 22, 24)] == [3, 4, 2, 2, 3, 4]
        assert len(tokens) == 25
        keys, values = [k - 5 for k in tokens[1:12:4]], [v - 11 for v in tokens[3:12:4]]
        for m, position in enumerate(tunnel.positions):
            query = tokens[position - score_slot] - 5
            unseen += query not in keys
            assert differs(batch.predictive[0, b, m], oracles.recall(keys, values, query, 6)) < 1e-7
    assert 20 < unseen < 60


@pytest.mark.parametrize("p_unseen", [0.1, 0.8])
def test_recall_asks_for_keys_never_stored_as_often_as_stated(p_unseen: float) -> None:
    entropy = Recall(pairs=3, symbols=9, queries=2, p_unseen=p_unseen).sample([0], 0, 4000).entropy
    share = float((entropy > 0).double().mean())
    assert abs(share - p_unseen) < 5 * (p_unseen * (1 - p_unseen) / 8000) ** 0.5


def test_recall_of_the_paper_has_329_tokens_and_certain_answers() -> None:
    tunnel = Recall()
    batch = tunnel.sample([0], 0, 30)
    assert tunnel.length == 329
    assert (batch.entropy == 0).all()
    shown = batch.inputs[0]
    for b in range(30):
        store = dict(zip(shown[b, 1:256:4].tolist(), shown[b, 3:256:4].tolist(), strict=True))
        assert len(store) == len(set(store.values())) == 64
        asked = [store[shown[b, p].item()] - 5 - 256 for p in tunnel.positions]
        assert asked == batch.targets[0, b].tolist()


def test_markov_inputs_are_noisy_means_and_give_the_predictive() -> None:
    tunnel = Markov(symbols=3, chain=7, dimensions=2)
    batch = tunnel.sample([0], 0, SEQUENCES)
    means, transition = tunnel.means().double().numpy(), tunnel.transition().numpy()
    for inputs, predictive in zip(batch.inputs[0].double().numpy(), batch.predictive[0], strict=True):
        likelihood = np.exp(-0.5 * ((inputs[:, None] - means) ** 2).sum(-1))
        posterior, _ = oracles.paths(transition, likelihood, np.ones(3) / 3)
        assert differs(predictive, posterior @ transition) < 1e-7


def test_markov_noise_around_the_true_mean_is_standard_normal() -> None:
    tunnel = Markov(chain=400)
    batch = tunnel.sample([0], 0, 10)
    noise = batch.inputs[:, :, 1:] - tunnel.means()[batch.targets[:, :, :-1]]
    assert abs(float(noise.mean())) < 5 / noise.numel() ** 0.5
    assert abs(float(noise.var()) - 1) < 5 * (2 / noise.numel()) ** 0.5
