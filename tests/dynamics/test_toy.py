"""The toy: its steps are gradient descent, its picture shows what the maps say, its command refuses what cannot be."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bayesattn_fast.cli import main
from bayesattn_fast.dynamics.toy import Moved, Toy, train
from tests.closeness import assert_close


@pytest.mark.parametrize("toy", [Toy(), Toy(seed=4, causal=True, ratio=10.0, rate=0.1, length=7, classes=4)])
def test_the_paths_are_those_of_autograd_descent_on_the_plain_formula(toy: Toy) -> None:
    moved, (x, targets) = train(toy), toy.data()
    weights = [w.clone().requires_grad_() for w in toy.weights()]
    rates = (toy.rate, toy.rate, toy.rate * toy.ratio, toy.rate)
    for step in range(toy.steps + 1):
        q, k, v = (x @ w for w in weights[:3])
        scores = q @ k.T / 2**0.5
        if toy.causal:
            scores = scores.masked_fill(torch.ones(toy.length, toy.length, dtype=torch.bool).triu(1), -torch.inf)
        alpha = scores.softmax(-1)
        loss = F.cross_entropy(alpha @ v @ weights[3], targets)
        assert_close(moved.loss[step], loss, 1e-9, f"loss at {step}")
        assert_close(moved.values[step], v, 1e-9, f"values at {step}")
        if step == 0:
            (pull,) = torch.autograd.grad(loss, v, retain_graph=True)
            assert_close(moved.pull, -pull, 1e-12, "pull")
        gradients = torch.autograd.grad(loss, weights)
        if step < toy.steps:
            with torch.no_grad():
                for w, rate, gradient in zip(weights, rates, gradients, strict=True):
                    w -= rate * gradient
    assert_close(moved.after.responsibility, alpha, 1e-9, "routing after")


def test_the_advantage_is_minus_the_gradient_of_a_small_step_of_routing() -> None:
    """−α A is ∂L/∂s: moving the scores of one query a little must change the loss by as much."""
    toy = Toy(seed=3)
    moved, (x, targets), weights = train(toy), toy.data(), toy.weights()
    scores = ((x @ weights[0]) @ (x @ weights[1]).T / 2**0.5).requires_grad_()
    loss = F.cross_entropy(scores.softmax(-1) @ (x @ weights[2]) @ weights[3], targets)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert_close(-moved.before.responsibility * moved.before.advantage, gradient, 1e-12, "score gradient")


def with_change(advantage: list[float], change: list[float]) -> Moved:
    zero = torch.zeros(1)
    before = torch.tensor(change) * 0
    maps = [type(train(Toy(steps=1)).before)(r, zero, torch.tensor(advantage)) for r in (before, torch.tensor(change))]
    return Moved(zero, zero, zero, maps[0], maps[1], zero, zero)


def test_agreement_is_the_share_of_moved_routing_that_went_with_the_advantage() -> None:
    assert with_change([1.0, -2.0], [0.3, -0.3]).agreement == pytest.approx(1.0)
    assert with_change([1.0, -2.0], [-0.3, 0.3]).agreement == pytest.approx(0.0)
    assert with_change([1.0, 1.0, -1.0], [0.3, -0.1, -0.2]).agreement == pytest.approx(5 / 6)


def test_the_command_writes_a_whole_page_and_the_numbers_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dynamics", "toy", "--seed", "5", "--steps", "30", "--out", str(tmp_path / "toy"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    moved = train(Toy(seed=5, steps=30))
    assert found["loss"] == moved.loss.tolist()
    assert found["after"]["responsibility"] == moved.after.responsibility.tolist()
    page = (tmp_path / "toy/report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "bayesattn dynamics toy --seed 5 --steps 30" in page
    assert "http" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--length", "1"], "length must be at least 2; got 1"),
        (["--rate", "-1"], "rate must be positive and finite; got -1.0"),
        (["--rate", "1e300"], "rate must let the loss stay finite; got 1e+300"),
        (["--seed", "-2"], "seed must not be negative; got -2"),
    ],
)
def test_a_toy_that_cannot_be_is_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dynamics", "toy", "--out", str(tmp_path / "toy"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "toy").exists()


def test_help_lists_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    from bayesattn_fast.commands.dynamics import EXPERIMENTS

    assert main(["dynamics", "--help"]) == 0
    listing = capsys.readouterr().out
    assert all(f"  {name} " in listing and text in listing for name, text in EXPERIMENTS.items())
