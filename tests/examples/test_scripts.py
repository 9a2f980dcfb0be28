"""The example scripts, at small sizes: what each claims to show is there."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesattn_fast.models import BLOCKS
from bayesattn_fast.tunnels import PRESETS, TUNNELS, Stream
from tests.examples.loading import EXAMPLES, load

SMALL: dict[str, Any] = {"steps": 40, "warmup": 4, "eval_sequences": 256, "eval_every": 40}


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs go to a temporary folder; what an example registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    yield
    for names in (TUNNELS, BLOCKS, *PRESETS.values()):
        for name in ("coin", "gru"):
            names.pop(name, None)  # type: ignore[attr-defined]


def test_every_example_says_how_it_is_run_and_has_a_test() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    for file in EXAMPLES.glob("*.py"):
        assert f"python examples/{file.name}" in file.read_text(encoding="utf-8"), file.name
        assert f'load("{file.stem}")' in tests, f"{file.name} has no test"


def test_a_transformer_learns_to_count_the_coins_heads() -> None:
    run = load("coin").main(**SMALL | {"seeds": 1})
    model, blind = (run.evaluation.summary("kl", name).mean for name in ("model", "best position-only"))
    assert model < 0.5 * blind


def test_the_coins_predictive_is_laplaces_rule_and_its_flips_follow_it() -> None:
    tunnel = load("coin").Coin(flips=3)
    batch = tunnel.sample([0], 0, 20_000, stream=Stream.HELD_OUT)
    shown, p = batch.inputs[0], batch.predictive[0, :, 2, 1]
    heads = shown[:, 1:].sum(1)
    assert torch.equal(p, (heads + 1) / 4)
    flipped = batch.targets[0, :, 2]
    for h in range(3):
        of = flipped[heads == h].double()
        # Five standard errors.
        assert abs(of.mean() - (h + 1) / 4) < 5 * 0.5 * len(of) ** -0.5


def test_the_gru_learns_more_than_predictors_without_context() -> None:
    run = load("gru").main(**SMALL | {"steps": 80, "lr": 0.01})
    assert run.evaluation.summary("kl").mean < run.evaluation.summary("kl", "best position-only").mean


def test_advantage_rises_while_attention_learns_and_falls_when_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    first, *_, last = lines = load("advantage").train(steps=80, every=10)
    assert last["loss"] < 0.05 * first["loss"]
    for layer in (0, 1):
        assert max(line[f"advantage {layer}"] for line in lines) > 2 * first[f"advantage {layer}"]
        assert last[f"advantage {layer}"] < 0.1 * first[f"advantage {layer}"]
        assert last[f"entropy {layer}"] < 0.5 * first[f"entropy {layer}"]
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(lines)


def test_a_larger_rate_anywhere_is_faster_than_sgd_and_everywhere_fastest() -> None:
    example = load("em_vs_sgd")
    found = example.losses(seeds=2, length=80, steps=200)
    goal = found["sgd"][:, -1]
    reached = {name: example.first_below(loss, goal).double().mean() for name, loss in found.items()}
    assert reached["sgd"] == 200
    assert all(reached[name] < 150 for name in example.SCHEDULES if name != "sgd")
    assert min(reached, key=reached.__getitem__) == "all"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_patching_changes_neither_the_loss_nor_the_gradients_of_transformers_mamba(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["mamba_without_cuda.py", "--batch", "2", "--length", "12"])
    load("mamba_without_cuda").main()
    before, *_, after = capsys.readouterr().out.splitlines()
    assert before.split("loss ")[1].split(",")[0] == after.split("loss ")[1].split(",")[0]
    assert float(after.rsplit(" ", 1)[1]) < 1e-4
