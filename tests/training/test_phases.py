"""Where a step's time goes: every phase is charged with its own work, and data is a small part of it."""

import time

import pytest
import torch

from bayesattn_fast import cli
from bayesattn_fast.training import Engine, preset
from bayesattn_fast.training.phases import PHASES, WARM_UP, PhaseClock
from bayesattn_fast.tunnels import TUNNELS
from tests.training.test_fit import small


def test_a_slow_phase_is_charged_to_itself_and_the_warm_up_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(small())
    engine.clock = PhaseClock()
    draw = engine.sample
    monkeypatch.setattr(engine, "sample", lambda: (time.sleep(0.02), draw())[1])
    for _ in range(WARM_UP):
        engine.update()
    assert sum(engine.clock.seconds.values()) == 0
    for _ in range(5):
        engine.update()
    shares = engine.clock.shares()
    assert list(shares) == list(PHASES)
    assert sum(shares.values()) == pytest.approx(1)
    assert engine.clock.seconds["data"] >= 5 * 0.02
    assert all(share > 0 for share in shares.values())


def test_timing_a_run_does_not_change_it() -> None:
    timed, plain = Engine(small()), Engine(small())
    timed.clock = PhaseClock()
    for _ in range(3):
        assert torch.equal(timed.update().loss, plain.update().loss)


@pytest.mark.parametrize("tunnel", list(TUNNELS))
def test_data_are_a_small_part_of_a_step_of_every_quick_preset(tunnel: str) -> None:
    """The bound is loose, as a busy machine is; the profile of a real run says how small."""
    engine = Engine(preset(tunnel, "quick"))
    engine.clock = PhaseClock()
    for _ in range(WARM_UP + 3):
        engine.update()
    assert engine.clock.shares()["data"] < 0.2


def test_train_profile_prints_the_share_of_every_phase(tmp_path, capsys: pytest.CaptureFixture) -> None:  # type: ignore[no-untyped-def]
    words = ["bijection", "--steps", "6", "--layers", "1", "--d-model", "16", "--heads", "2", "--eval-sequences", "16"]
    assert cli.main(["train", *words, "--out", str(tmp_path / "run"), "--quiet", "--profile"]) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "a step takes" in line)
    assert "over 4 steps" in line
    for phase in PHASES:
        assert f"{phase} " in line
