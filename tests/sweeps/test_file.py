"""Sweep files: the product they describe, and every mistake with its line and key."""

from pathlib import Path

import pytest

from bayesattn_fast.dynamics import Experiment
from bayesattn_fast.sweeps import read_sweep, sweep_of
from bayesattn_fast.training import RunConfig
from tests.sweeps.tiny import tiny

START = 'seeds = 3\ntunnels = ["bijection"]\nmodels = ["lstm"]\n'


def test_a_list_is_an_axis_of_the_product() -> None:
    sweep = sweep_of(tiny(settings={"lr": [0.001, 0.003], "steps": 20}, model={"lstm": {"d_model": [8, 16]}}))
    assert len(sweep.cells) == 2 * (2 + 4 + 2)
    lstm = [cell for cell in sweep.cells if cell.labels["model"] == "lstm"]
    assert {(c.labels["lr"], c.labels["d_model"]) for c in lstm} == {(a, b) for a in (0.001, 0.003) for b in (8, 16)}
    for cell in lstm:
        assert isinstance(cell.config, RunConfig)
        assert (cell.config.training.lr, cell.config.model.d_model) == (cell.labels["lr"], cell.labels["d_model"])
        assert cell.config.training.steps == 20


def test_a_table_of_the_single_head_is_the_sticky_chain_experiment() -> None:
    sweep = sweep_of({"seeds": 10, "single_head": {"length": 64, "steps": 40, "methods": ["sgd", "em"]}})
    assert sweep.cells[0].config == Experiment(length=64, steps=40, methods=("sgd", "em"))
    assert sweep.cells[0].steps == 40 * 8


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (START + "[settings]\nbatch = 4\nstpes = 3\n", 6, "settings.stpes: unknown setting; did you mean steps"),
        (START + "[settings]\nsteps = 0\n", 5, "settings.steps: steps must be at least 1; got 0"),
        (START + '[settings]\nsteps = "many"\n', 5, "settings.steps: must be like 2500; got 'many'"),
        (START + '[settings]\nschedule = "linear"\n', 5, "must be one of constant, cosine; got 'linear'"),
        (START + "[settings]\nlr = []\n", 5, "settings.lr: an empty list makes the product empty"),
        (START + "[settings]\nlr = [0.1, 0.1]\n", 5, "settings.lr: names a value twice"),
        (START + "[tunnel.bijection]\nsymbols = 1\n", 5, "tunnel.bijection.symbols"),
        (START + "[tunnel.hnm]\nstates = 3\n", 4, "tunnel.hnm: unknown tunnel; did you mean hmm?"),
        (START + "[tunel.bijection]\nsymbols = 4\n", 4, "tunel: unknown key; did you mean tunnel"),
        ('seeds = 3\ntunnels = []\nmodels = ["lstm"]\n', 2, "the product is empty"),
        ('seeds = 3\ntunnels = ["bijektion"]\nmodels = ["lstm"]\n', 2, "did you mean bijection"),
        ('tunnels = ["bijection"]\nmodels = ["lstm"]\nseeds = [1, 2, 1]\n', 3, "seeds: must differ from each other"),
        ('tunnels = ["bijection"]\n\nmodels = ["lstm", "lstm"]\nseeds = 2\n', 3, "models: names one twice"),
        ("seeds = 0\n", 1, "seeds: must name at least one seed"),
        ("seeds = 3\n[single_head]\nsteps = 7\n", 3, "single_head.steps: steps must be a multiple of 20"),
        ("seeds = 3\npreset = 'quick'\n[single_head]\nsteps = 20\n", 2, "preset: does not go with single_head"),
    ],
)
def test_a_mistake_is_told_with_line_and_key(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as found:
        read_sweep(path)
    assert f"{path}, line {line}: " in str(found.value)
    assert says in str(found.value)


def test_what_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("seeds = 3\ntunnels = [\n")
    with pytest.raises(ValueError, match=r"line 3|end of document"):
        read_sweep(path)


def test_the_example_is_a_sweep() -> None:
    assert len(read_sweep(Path(__file__).parents[2] / "examples/sweep.toml").cells) == 4
