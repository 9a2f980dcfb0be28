"""bench/gpu.sh stops cleanly where there is no card, goes on after a part that failed, and needs little installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayesattn_fast.bench.cases import cases_of
from bayesattn_fast.bench.record import load
from bench.card import packed_training
from tests.bench.test_pictures import a_record, a_row

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu.sh"


def gpu_sh(out: Path, *words: str, python: Path | str = sys.executable, path: str = "") -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": str(python), "OUT": str(out), "PYTHONPATH": path}
    return subprocess.run([str(SCRIPT), *words], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_exits_with_3(tmp_path: Path) -> None:
    done = gpu_sh(tmp_path / "out")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no CUDA device" in done.stderr
    assert not (tmp_path / "out").exists()


def stand_in(folder: Path, fails: str) -> Path:
    """A python that writes down what it is asked for and fails at one of the parts."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {folder}/asked\necho done\ncase "$*" in *{fails}*) exit 7;; esac\n')
    python.chmod(0o755)
    return python


def parts(folder: Path) -> list[str]:
    lines = [line.split() for line in (folder / "asked").read_text().splitlines()]
    return [f"{words[1]} {words[2]}" for words in lines if words[0] == "-m"]


@pytest.mark.parametrize("fails", ["verify", "tests/cuda", "regression", "join"])
def test_a_part_that_fails_is_named_and_the_others_go_on(tmp_path: Path, fails: str) -> None:
    done = gpu_sh(tmp_path / "out", python=stand_in(tmp_path, fails))
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    assert "(exit 7, see " in failed
    # A process each for groups of ops, between the tests and the table.
    assert parts(tmp_path) == ["bench.card verify", "pytest -p", *["bench.card bench"] * 6, "bench.card join"]


def test_on_a_card_every_op_is_checked_and_timed(tmp_path: Path) -> None:
    done = gpu_sh(tmp_path / "out", python=stand_in(tmp_path, "nothing"))
    assert done.returncode == 0, done.stdout + done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    assert all("--device cuda" in line for line in asked if "bench.card verify" in line or "bench.card bench" in line)
    timed = " ".join(line.partition(" --out ")[2].split(" ", 1)[1] for line in asked if "bench.card bench" in line)
    on_cards = {case.op for case in cases_of() if "cuda" in case.devices}
    assert sorted(timed.split()) == sorted(on_cards)


def test_the_dry_run_makes_every_file_and_needs_no_command_line_library(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in ("tyro", "rich", "pyarrow"):
        (absent / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")
    done = gpu_sh(tmp_path / "out", "--dry", path=str(absent))
    assert done.returncode == 0, done.stdout + (tmp_path / "out" / "gpu.log").read_text()
    made = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    files = {"gpu.log", "verify.json", "results.json", "results.csv", "report.html", "figures/roofline.png"}
    assert made == files
    assert {row.op for row in load(tmp_path / "out").rows} == {"elimination", "training"}
    assert all(row["status"] == "right" for row in json.loads((tmp_path / "out" / "verify.json").read_text())["rows"])
    *_, table, tests = done.stdout.splitlines()
    assert table.startswith("packed training, E 8, batch 16")
    assert " passed" in tests or " skipped" in tests


def test_packed_seeds_are_counted_beside_the_same_seeds_one_after_another() -> None:
    training = {"op": "training", "sizes": "E 512, batch 16", "unit": "seed·steps", "amount": 1024, "curve": ""}
    packed = a_row(milliseconds=100.0, **training)
    alone = a_row("ours, one by one", milliseconds=10.0, share=1 / 512, **training)
    (line,) = packed_training(a_record(packed, alone))
    assert "10240 seeds·steps/s, one after another 200" in line
    assert line.endswith("×51.2 (target ×20)")
