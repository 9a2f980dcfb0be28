"""What the posteriors refuse, and how they say so; and that the impossible gives −inf, never NaN."""

import math
from collections.abc import Callable

import pytest
import torch

from bayesattn_fast.posteriors import (
    bijection_predictive,
    hmm_filter,
    markov_predictive,
    recall_predictive,
    regression_predictive,
)

HALF = torch.full((4, 2, 2), 0.5, dtype=torch.float64)
LEAKY = HALF.clone()
LEAKY[3, 1, 0] = 0.4
NEGATIVE = HALF.clone()
NEGATIVE[2, 0] = torch.tensor([1.5, -0.5])
OBSERVED = torch.zeros(4, 6, dtype=torch.int64)
WRONG = OBSERVED.clone()
WRONG[2, 5] = 2
RANGE = torch.arange(3)[None]

REFUSALS: list[tuple[str, Callable[[], object], str]] = [
    ("sum", lambda: hmm_filter(LEAKY, HALF, OBSERVED), r"rows of transition must sum to 1 .*row \(3, 1\) is 0.9"),
    ("negative", lambda: hmm_filter(HALF, NEGATIVE, OBSERVED), r"emission must hold .* ≥ 0; entry \(2, 0, 1\) is -0.5"),
    (
        "symbol",
        lambda: hmm_filter(HALF, HALF, WRONG),
        r"observations must lie in \[-1, 2\).*sequence 2, position 5 is 2",
    ),
    ("shape", lambda: hmm_filter(HALF[:3], HALF, OBSERVED), r"transition must have .*B = 4.*got \(3, 2, 2\)"),
    ("dtype", lambda: hmm_filter(HALF, HALF.float(), OBSERVED), "one floating dtype .*transition torch.float64"),
    ("lengths", lambda: hmm_filter(HALF, HALF, OBSERVED, lengths=torch.tensor([6, 7, 1, 1])), "lengths .* is 7"),
    ("initial", lambda: hmm_filter(HALF, HALF, OBSERVED, initial=HALF[0, 0] * 0.9), "rows of initial"),
    ("key", lambda: bijection_predictive(RANGE, RANGE, 2), r"keys must lie in \[0, 2\); sequence 0, position 2 is 2"),
    ("reuse", lambda: bijection_predictive(RANGE, RANGE * 0, 3), "values must have positive .*sequence 0, position 1"),
    (
        "twice",
        lambda: recall_predictive(RANGE, RANGE // 2, RANGE, 9),
        "stored_values must be distinct.*position 1 is 0",
    ),
    ("none", lambda: recall_predictive(RANGE, RANGE, RANGE + 1, 3), "queries must be stored keys.*position 2 is 3"),
    ("sigma", lambda: regression_predictive(HALF, HALF[..., 0], sigma=0), "sigma must be positive and finite; got 0"),
    ("bins", lambda: regression_predictive(HALF, HALF[..., 0], bins=1), "bins must be at least 2; got 1"),
    (
        "nan",
        lambda: regression_predictive(HALF * math.nan, HALF[..., 0]),
        r"x must be finite; entry \(0, 0, 0\) is nan",
    ),
    ("empty", lambda: hmm_filter(HALF, HALF, OBSERVED[:, :0]), r"observations must have shape \(B, T\).*got \(4, 0\)"),
    ("noise", lambda: markov_predictive(HALF, HALF[0], HALF[0], noise=-1), "noise must be positive .*got -1"),
]


@pytest.mark.parametrize(("call", "message"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_bad_arguments_are_named_with_their_place(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


NEVER_ONE = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
ONE_LATE = torch.tensor([[0, 0, 0], [0, 1, 0]])


def test_impossible_observation_is_named_and_otherwise_costs_minus_infinity_without_nan() -> None:
    with pytest.raises(ValueError, match=r"observations must have positive probability .*sequence 1, position 1 is 1"):
        hmm_filter(HALF[0], NEVER_ONE, ONE_LATE)
    result = hmm_filter(HALF[0], NEVER_ONE, ONE_LATE, allow_impossible=True)
    assert result.log_evidence.tolist() == [0.0, -math.inf]
    assert not any(field.isnan().any() for field in result)
    assert torch.equal(result.posterior[1], result.posterior[0])


def test_contradicting_pairs_cost_minus_infinity_and_are_not_learnt_from() -> None:
    keys, values = torch.tensor([[0, 0, 1, 2, 1]]), torch.tensor([[1, 2, 1, 0, 2]])
    result = bijection_predictive(keys, values, 3, allow_impossible=True)
    assert result.log_evidence.item() == -math.inf
    expected = [[1 / 3, 1 / 3, 1 / 3], [0, 1, 0], [0.5, 0, 0.5], [0.5, 0, 0.5], [0, 0, 1]]
    assert torch.equal(result.predictive[0], torch.tensor(expected, dtype=torch.float64))


def test_validate_false_gives_the_same_bits_and_no_error() -> None:
    checked, unchecked = (hmm_filter(HALF, HALF, OBSERVED, validate=v) for v in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(checked, unchecked, strict=True))
    assert hmm_filter(HALF[0], NEVER_ONE, ONE_LATE, validate=False).log_evidence[1] == -math.inf
