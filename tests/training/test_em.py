"""Optimizer em is sgd with faster attention values, for every seed by itself, and refuses what has no values."""

import json
from pathlib import Path

import pytest
import torch

from bayesattn_fast.api import configure
from bayesattn_fast.cli import main
from bayesattn_fast.training import Engine, RunConfig, TrainingConfig, fit, preset
from bayesattn_fast.training.checkpoint import fingerprint

WIDTH = 16
SMALL = {"layers": 2, "d_model": WIDTH, "heads": 2, "batch": 8, "eval_sequences": 16, "warmup": 0, "lr": 0.05}


def small(seeds: tuple[int, ...] = (0, 1), **settings: object) -> RunConfig:
    return configure(preset("bijection", "quick", seeds), {**SMALL, **settings})


def moved(**settings: object) -> dict[str, torch.Tensor]:
    """What one step does to every parameter."""
    engine = Engine(small(**settings))
    before = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
    engine.update()
    return {name: parameter.detach() - before[name] for name, parameter in engine.model.named_parameters()}


@pytest.mark.parametrize("ratio", [4.0, 0.5])
def test_a_step_moves_values_ratio_times_as_far_as_sgd_and_all_else_alike(ratio: float) -> None:
    plain, em = moved(optimizer="sgd"), moved(optimizer="em", value_lr_ratio=ratio)
    fused = {f"blocks.{i}.attn.qkv.{part}" for i in range(2) for part in ("weight", "bias")}
    assert fused < set(em)
    for name, change in em.items():
        if name not in fused:
            assert torch.equal(change, plain[name]), name
            continue
        routing, values = change[:, : 2 * WIDTH], change[:, 2 * WIDTH :]
        assert torch.equal(routing, plain[name][:, : 2 * WIDTH]), name
        assert float(plain[name][:, 2 * WIDTH :].abs().max()) > 0, name
        assert torch.allclose(values, ratio * plain[name][:, 2 * WIDTH :], rtol=1e-3, atol=2e-7), name


def test_a_ratio_of_one_is_sgd_bit_for_bit() -> None:
    plain, em = moved(optimizer="sgd"), moved(optimizer="em", value_lr_ratio=1.0)
    assert all(torch.equal(em[name], change) for name, change in plain.items())


def test_a_seed_trains_the_same_alone_and_packed() -> None:
    alone, packed = (Engine(small(seeds, optimizer="em")) for seeds in ((2,), (0, 1, 2, 3)))
    for _ in range(30):
        losses = alone.update().loss[0], packed.update().loss[2]
        assert abs(float(losses[0] - losses[1])) < 1e-5
    for mine, theirs in zip(alone.parameters, packed.parameters, strict=True):
        assert torch.allclose(mine[0], theirs[2], atol=1e-5)


def test_a_resumed_run_ends_at_the_same_weights(tmp_path: Path) -> None:
    config = small(optimizer="em", steps=8, checkpoint_every=4)
    whole, parts = Engine(config), Engine(config)
    for _ in range(4):
        parts.update()
    resumed = Engine(config)
    resumed.restore(parts.checkpoint())
    for _ in range(8):
        whole.update()
    for _ in range(4):
        resumed.update()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters, resumed.parameters, strict=True))


@pytest.mark.parametrize("model", ["mamba", "lstm", "mlp"])
def test_a_model_without_attention_values_is_refused_before_a_folder_is_made(model: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"model must be transformer; got {model}"):
        fit(small(optimizer="em", model=model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "bijection", "--model", "lstm", "--optimizer", "em", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "got lstm" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("inf"), float("nan")])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"value_lr_ratio must be positive and finite; got"):
        TrainingConfig(optimizer="em", value_lr_ratio=ratio)


def test_a_ratio_without_em_is_refused() -> None:
    with pytest.raises(ValueError, match=r"belongs to optimizer em; got 3\.0 with optimizer adamw"):
        TrainingConfig(value_lr_ratio=3.0)


def test_the_ratio_is_kept_in_the_configuration_of_an_em_run() -> None:
    config = small(optimizer="em", value_lr_ratio=3.0)
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    other = small(optimizer="em", value_lr_ratio=4.0)
    assert config.difference(other) == "value_lr_ratio is 4.0 there and 3.0 here"


def test_runs_from_before_the_ratio_keep_their_fingerprint_and_load() -> None:
    """The hash is that of versions whose configuration had no such field: their checkpoints are still theirs."""
    config = preset("bijection", "quick", (0, 1))
    assert fingerprint(config) == "317768d78ffeaf616a12e097d087c2f9fa0cc51505fdfd2e1ec6f4e5374a482f"
    old = config.to_dict()
    assert "value_lr_ratio" not in old["training"]
    assert RunConfig.from_dict(old) == config
