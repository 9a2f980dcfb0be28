"""The life of a run: packing, divergence, interruption, resumption, and files that are not what they should be."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesattn_fast.api import configure
from bayesattn_fast.storage import read_table
from bayesattn_fast.training import Engine, Interrupted, RunConfig, fit, lifecycle, preset

SMALL = {"layers": 1, "d_model": 16, "heads": 2, "batch": 8, "eval_sequences": 32, "warmup": 5}


def small(seeds: tuple[int, ...] = (0, 1), **settings: object) -> RunConfig:
    return configure(preset("bijection", "quick", seeds), {**SMALL, **settings})


def rows_of(folder: Path) -> tuple[list, list]:
    return read_table(folder / "metrics.parquet"), read_table(folder / "losses.parquet")


@pytest.mark.parametrize("model", ["transformer", "lstm", "mlp"])
def test_a_seed_trains_the_same_alone_and_packed(model: str) -> None:
    alone, packed = (Engine(small(seeds, model=model)) for seeds in ((5,), tuple(range(8))))
    for mine, theirs in zip(alone.parameters, packed.parameters, strict=True):
        assert torch.equal(mine[0], theirs[5])
    for _ in range(50):
        batches = alone.sample(), packed.sample()
        assert torch.equal(batches[0].inputs[0], batches[1].inputs[5])
        assert torch.equal(batches[0].targets[0], batches[1].targets[5])
        losses = alone.update().loss[0], packed.update().loss[5]
        assert abs(float(losses[0] - losses[1])) < 1e-5


def test_seeds_start_from_different_weights_and_see_different_data() -> None:
    engine = Engine(small((0, 1)))
    assert not torch.equal(engine.model.unembed.weight[0], engine.model.unembed.weight[1])
    assert not torch.equal(engine.sample().inputs[0], engine.sample().inputs[1])


def test_a_diverged_seed_is_frozen_and_marked_while_the_others_go_on_unchanged() -> None:
    healthy, ill = Engine(small()), Engine(small())
    for step in range(12):
        if step == 4:
            with torch.no_grad():
                ill.model.unembed.weight[1] = float("nan")
            broken = [parameter[1].clone() for parameter in ill.parameters]
        losses = healthy.update().loss, ill.update().loss
        assert torch.equal(losses[0][0], losses[1][0])
    assert ill.diverged.tolist() == [-1, 4]
    for parameter, frozen in zip(ill.parameters, broken, strict=True):
        assert torch.equal(parameter[1].nan_to_num(7.0), frozen.nan_to_num(7.0))
    for mine, theirs in zip(healthy.parameters, ill.parameters, strict=True):
        assert torch.equal(mine[0], theirs[0])


def test_a_diverged_seed_is_named_in_the_result_and_left_out_of_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small((3, 4), steps=6, optimizer="sgd", lr=1e-2)

    class Broken(Engine):
        def sample(self):  # type: ignore[no-untyped-def]
            if self.step == 2:
                with torch.no_grad():
                    self.model.unembed.weight[0] = float("inf")
            return super().sample()

    monkeypatch.setattr(lifecycle, "Engine", Broken)
    run = fit(config, tmp_path / "run")
    assert run.diverged == {3: 2}
    assert run.evaluation.summary("kl").mean == float(run.evaluation.per_seed("kl")[1])
    assert {row["diverged"] for row in rows_of(tmp_path / "run")[0] if row["seed"] == 3 and row["step"] == 6} == {2}


def test_the_whole_ensemble_clips_each_seed_by_its_own_norm() -> None:
    engine = Engine(small(optimizer="sgd", lr=1.0, warmup=0, clip=0.05))
    before = [parameter.detach().clone() for parameter in engine.parameters]
    engine.update()
    moved = torch.stack(
        [(p.detach() - b).reshape(2, -1).square().sum(1) for p, b in zip(engine.parameters, before, strict=True)]
    )
    assert torch.allclose(moved.sum(0).sqrt(), torch.tensor([0.05, 0.05]), rtol=1e-4)


def stop_after(step: int):  # type: ignore[no-untyped-def]
    def on_step(done: int, result: object) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGINT)

    return on_step


@pytest.mark.parametrize("stopped_at", [1, 7, 10])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, stopped_at: int) -> None:
    config = small(steps=20, eval_every=6, checkpoint_every=5, log_every=3)
    whole = fit(config, tmp_path / "whole")
    with pytest.raises(Interrupted) as stop:
        fit(config, tmp_path / "parts", on_step=stop_after(stopped_at))
    assert stop.value.step == stopped_at
    fit(config, tmp_path / "parts", resume=True)
    assert rows_of(tmp_path / "parts") == rows_of(whole.folder)


CHILD = """
import sys, torch
from bayesattn_fast.api import configure
from bayesattn_fast.training import fit, preset
torch.set_num_threads(1)
settings = dict(layers=1, d_model=16, heads=2, batch=8, eval_sequences=32, warmup=5,
                steps=90, eval_every=20, checkpoint_every=7, log_every=3)
config = configure(preset("bijection", "quick", (0, 1)), settings)
from pathlib import Path
def on_step(step, result):
    print(step, flush=True)
fit(config, Path(sys.argv[1]), resume=True, on_step=on_step)
"""


def test_a_run_killed_without_warning_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[str]:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
        )

    for target in (23, 51):
        with start(tmp_path / "killed") as child:
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= target:
                    time.sleep(0.003)
                    child.send_signal(signal.SIGKILL)
                    break
        assert child.returncode == -signal.SIGKILL
    for folder in ("killed", "whole"):
        with start(tmp_path / folder) as child:
            child.communicate()
        assert child.returncode == 0
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(small(steps=4), folder)
    return folder


def copy_of(folder: Path, target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_a_truncated_checkpoint_is_refused_and_left_alone(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "run")
    file = folder / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged or not a checkpoint"):
        fit(small(steps=4), folder, resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_foreign_checkpoint_is_refused(finished: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = copy_of(finished, tmp_path / "run")
    save_file({"weight": torch.zeros(2)}, folder / "checkpoint.safetensors")
    with pytest.raises(ValueError, match="is not a checkpoint of this package"):
        fit(small(steps=4), folder, resume=True)


def test_a_checkpoint_of_other_settings_is_refused(finished: Path, tmp_path: Path) -> None:
    other = fit(small(steps=4, lr=0.5), tmp_path / "other").folder
    folder = copy_of(finished, tmp_path / "run")
    (folder / "checkpoint.safetensors").write_bytes((other / "checkpoint.safetensors").read_bytes())
    with pytest.raises(ValueError, match="other settings"):
        fit(small(steps=4), folder, resume=True)


def test_a_folder_with_another_run_is_not_touched(finished: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    with pytest.raises(ValueError, match="already holds a run"):
        fit(small(steps=4), finished)
    with pytest.raises(ValueError, match=r"other settings: lr is"):
        fit(small(steps=4, lr=0.5), finished, resume=True)
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds no run"):
        fit(small(steps=4), tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_kill_in_its_first_moment_leaves_is_an_empty_folder(tmp_path: Path) -> None:
    for name in (".lock", ".config.json.1702-10a1686a.tmp"):
        (tmp_path / name).touch()
    assert fit(small(steps=2), tmp_path, resume=True).config == small(steps=2)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    from bayesattn_fast.training.run import locked

    config = small(steps=4)
    fit(config, tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(ValueError, match="in use by another process"):
        fit(config, tmp_path / "run", resume=True)


def test_settings_that_do_not_fit_leave_no_folder(tmp_path: Path) -> None:
    config = small(steps=4)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=5))
    with pytest.raises(ValueError, match="max_length must cover the tunnel's 13 positions"):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_soft_and_hard_targets_agree_in_expectation() -> None:
    from bayesattn_fast.training.engine import seed_losses

    engine = Engine(small(batch=4000))
    batch = engine.sample()
    logits: Tensor = engine.predictor()(batch.inputs)
    hard, soft = (seed_losses(logits, batch, kind) for kind in ("hard", "soft"))
    assert torch.allclose(hard, soft, rtol=0.02)
    assert not torch.equal(hard, soft)


def test_bf16_autocast_stays_close_to_fp32() -> None:
    losses = [Engine(small(precision=precision)).update().loss for precision in ("fp32", "bf16")]
    assert torch.allclose(losses[0], losses[1], rtol=2e-2)
    assert not torch.equal(losses[0], losses[1])
