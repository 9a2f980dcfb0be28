"""The example that fits an HMM by gradient reaches what Baum–Welch reaches."""

import pytest

from tests.examples.loading import load


def test_gradient_fit_beats_the_truth_and_matches_baum_welch_on_the_same_data() -> None:
    example = load("fit_hmm")
    truth, start = example.random_model(2, 4, 0), example.random_model(2, 4, 2, sharpness=0.5)
    observations = example.draw(truth, 24, 40, 1)

    def value(model: object) -> float:
        return float(example.log_likelihood(model, observations)) / observations.numel()

    fitted = example.fit(start, observations, 150)
    assert value(fitted) > value(truth) > value(start)
    pytest.importorskip("hmmlearn")
    # EM comes near its optimum slowly; the gradient may end above it, never noticeably below.
    assert value(fitted) > value(example.baum_welch(start, observations, 400)) - 1e-4
