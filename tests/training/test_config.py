"""Seeds and settings: what is accepted, and what a mistake says."""

import dataclasses
import json

import pytest

from bayesattn_fast.training import RunConfig, TrainingConfig, parse_seeds, preset


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", (0, 1, 2)), (2, (0, 1)), ("5:8", (5, 6, 7)), ("42,2024", (42, 2024)), ([7, 9], (7, 9)), ("7,", (7,))],
)
def test_seeds_are_a_count_a_range_or_a_list(text: object, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["a:b", "3:3", "0", "-1", "1:2:3", "4,4", "", "1.5", "-3:2", str(2**63) + ","])
def test_bad_seeds_are_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match=r"seeds must .*got"):
        parse_seeds(text)


@pytest.mark.parametrize("tunnel", ["bijection", "hmm", "regression", "recall", "markov"])
@pytest.mark.parametrize("name", ["quick", "paper"])
def test_a_configuration_survives_json(tunnel: str, name: str) -> None:
    config = preset(tunnel, name, (1, 4))
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.difference(config) is None


def test_the_first_difference_between_runs_is_named() -> None:
    config = preset("bijection", "quick", (0,))
    other = dataclasses.replace(config, training=dataclasses.replace(config.training, lr=0.5))
    assert other.difference(config) == f"lr is {config.training.lr} there and 0.5 here"
    assert "seeds" in str(dataclasses.replace(config, seeds=(0, 1)).difference(config))


@pytest.mark.parametrize(
    "settings", [{"steps": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"clip": -1.0}, {"beta2": 1.0}, {"batch": 0}]
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"^{name} must .*got"):
        TrainingConfig(**settings)
