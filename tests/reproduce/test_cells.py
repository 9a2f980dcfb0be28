"""Parameter counts match, cells are finished only when they are, and nothing of other settings is taken for them."""

import dataclasses
from pathlib import Path

import pytest

from bayesattn_fast import models
from bayesattn_fast.reproduce import SCALES, Cell, cells, train_missing
from bayesattn_fast.reproduce.cells import ARCHITECTURES, TOLERANCE, TUNNELS, longer_tunnels, matched, parameter_count
from bayesattn_fast.reproduce.trainer import finished
from bayesattn_fast.training import RunConfig, fit, preset


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("tunnel", TUNNELS)
def test_parameter_counts_of_a_tunnel_match_within_two_percent(tunnel: str, scale: str) -> None:
    task = preset(tunnel, scale).tunnel
    counts = [parameter_count(matched(tunnel, architecture, scale), task) for architecture in ARCHITECTURES]
    assert max(abs(count / counts[0] - 1) for count in counts) <= TOLERANCE


def test_counts_are_those_of_the_models_that_are_built() -> None:
    task = preset("bijection", "quick").tunnel
    for architecture in ARCHITECTURES:
        config = matched("bijection", architecture, "quick")
        assert parameter_count(config, task) == models.build(config, task, (0,)).parameter_count()


def test_learned_positions_reach_every_length_that_is_tested() -> None:
    for tunnel in ("hmm", "recall"):
        rows = matched(tunnel, "transformer", "quick").max_length
        assert rows == max(task.length for task in longer_tunnels(tunnel, "quick"))


def test_every_architecture_stands_on_every_tunnel() -> None:
    names = {(cell.tunnel, cell.architecture) for cell in cells("quick", (0,))}
    assert names == {(tunnel, architecture) for tunnel in TUNNELS for architecture in ARCHITECTURES}
    with pytest.raises(ValueError, match="scale must be one of quick, paper; got 'tiny'"):
        cells("tiny", (0,))


class Short(Cell):
    """A cell of four steps."""

    @property
    def config(self) -> RunConfig:
        start = super().config
        training = dataclasses.replace(start.training, steps=4, batch=4, eval_sequences=16, checkpoint_every=2)
        return dataclasses.replace(start, training=training)


def test_a_cell_is_trained_once_and_one_of_other_settings_is_refused(tmp_path: Path) -> None:
    cell = Short("bijection", "mlp", "quick", (0,))
    assert not finished(cell, tmp_path)
    fit(cell.config, cell.folder(tmp_path))
    assert finished(cell, tmp_path)
    said: list[str] = []
    train_missing([cell], tmp_path, say=said.append)
    assert said == []
    with pytest.raises(ValueError, match="was started with other settings: batch is 4 there and 64 here"):
        finished(Cell("bijection", "mlp", "quick", (0,)), tmp_path)
