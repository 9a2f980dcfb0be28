"""Published or derived levels of the tasks, within 5 standard errors of our sample plus half a unit of the last digit.

The levels were measured or derived for the processes of arXiv 2512.22471 and of the authors' code for 2512.22473.
"""

import math

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.tunnels import Batch, Bijection, Hmm, Markov

LN2 = math.log(2)


def assert_level(values: Tensor, level: float, rounding: float) -> None:
    """The mean of values (B, P) over sequences is `level`, itself known to ± rounding."""
    per_sequence = values.double().mean(1)
    error = float(per_sequence.std()) / math.sqrt(len(per_sequence))
    assert abs(float(per_sequence.mean()) - level) < 5 * error + rounding, f"{per_sequence.mean():.5f} ± {error:.5f}"


@pytest.fixture(scope="module")
def hmm() -> tuple[Batch, dict[str, Tensor]]:
    tunnel = Hmm(observations=20)
    batch = tunnel.sample([0], 0, 3000, stream=1)
    return batch, dict(tunnel.reference_predictors(batch))


def test_bijection_of_20_has_3_2146_bits_and_a_loss_floor_of_2_2282_nats() -> None:
    batch = Bijection().sample([0], 0, 50)
    assert abs(float(batch.entropy.mean()) - 3.2146) < 5e-5
    assert abs(float(batch.entropy.mean()) * LN2 - 2.2282) < 5e-5
    assert abs(float((math.log2(20) - batch.entropy).mean()) - 1.1073) < 1e-4
    staircase = torch.log2(torch.arange(20, 1, -1).double())
    assert (batch.entropy[0] - staircase).abs().max() < 1e-6


def test_bijection_with_replacement_repeats_a_third_and_uniform_misses_it_by_1_848_bits() -> None:
    entropy = Bijection(with_replacement=True).sample([0], 0, 4000).entropy[0]
    assert_level(entropy, 2.474, 5e-4)
    assert_level((entropy == 0).float(), 0.345, 5e-4)
    assert_level(math.log2(20) - entropy, 1.848, 5e-4)


def test_hmm_posterior_has_1_91_bits_and_uniform_misses_it_by_0_412(hmm: tuple[Batch, dict[str, Tensor]]) -> None:
    entropy = hmm[0].entropy[0]
    assert_level(entropy, 1.910, 5e-3)
    assert_level((math.log2(5) - entropy).abs(), 0.412, 3e-3)


@pytest.mark.parametrize(
    ("name", "level", "divergence", "rounding"),
    [
        ("one-step filter", 0.079, 0.030, 1e-3),
        ("window 1", 0.160, 0.114, 1e-3),
        ("window 2", 0.048, 0.0117, 5e-4),
        ("window 3", 0.0148, 0.0014, 1e-4),
    ],
)
def test_hmm_reference_filters_err_as_much_as_measured_elsewhere(
    hmm: tuple[Batch, dict[str, Tensor]], name: str, level: float, divergence: float, rounding: float
) -> None:
    batch, predictors = hmm
    exact, guess = batch.predictive[0].double(), predictors[name][0].double()
    assert_level((entropy_bits(guess) - batch.entropy[0]).abs(), level, rounding)
    assert_level((exact * (exact.log2() - guess.log2())).sum(-1), divergence, rounding)


@pytest.mark.parametrize(("authors", "stay", "nats"), [(False, 0.3, 1.8833), (True, 0.3498, 1.8292)])
def test_sticky_chain_stays_and_has_the_minimum_entropy_quoted(authors: bool, stay: float, nats: float) -> None:
    tunnel = Markov(authors_matrix=authors)
    assert abs(tunnel.minimum_entropy * LN2 - nats) < 5e-5
    assert abs(float(tunnel.transition()[3, 3]) - stay) < 5e-5


def test_authors_chain_has_the_row_printed_by_their_code() -> None:
    row = torch.tensor([0.3498, 0.1660, 0.0830, 0.0553, 0.0415, 0.0553, 0.0830, 0.1660])
    assert (Markov(authors_matrix=True).transition()[0] - row).abs().max() < 6e-5


def test_on_the_sticky_chain_the_filter_gains_little_over_the_last_input() -> None:
    tunnel = Markov(chain=1000, authors_matrix=True)
    batch = tunnel.sample([0], 0, 20)
    last, told = tunnel.reference_predictors(batch).values()
    entropies = [entropy_bits(p[0].double()).mean() * LN2 for p in (told, batch.predictive, last)]
    assert entropies == sorted(entropies)
    assert entropies[2] - entropies[0] < 0.02
    losses = [-p[0].gather(2, batch.targets[0][..., None]).log().squeeze(2) for p in (last, batch.predictive)]
    assert_level(losses[0] - losses[1], float(entropies[2] - entropies[1]), 1e-3)
    assert_level((last[0].argmax(2) == batch.targets[0]).float(), 0.35, 5e-3)
