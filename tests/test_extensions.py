"""--load: files of one's own for every command, and for the workers of a sweep."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SMALL = ["--quiet", "--steps", "3", "--warmup", "1", "--eval-sequences", "32", "--d-model", "8", "--layers", "1"]


def bayesattn(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bayesattn_fast", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_a_loaded_tunnel_and_model_train_and_are_listed(tmp_path: Path) -> None:
    both = ["--load", EXAMPLES / "coin.py", "--load", EXAMPLES / "gru.py"]
    done = bayesattn(tmp_path, *both, "train", "coin", "--model", "gru", "--flips", "5", *SMALL, "--out", "läuft hier")
    assert done.returncode == 0, done.stderr
    assert "gru on coin" in done.stdout
    refused = bayesattn(tmp_path, "eval", "läuft hier")
    assert refused.returncode == 2
    assert "unknown tunnel 'coin'" in refused.stderr
    assert bayesattn(tmp_path, *both, "eval", "läuft hier", "--scored", "9", "--sequences", "16").returncode == 0


def test_workers_of_a_sweep_know_what_was_loaded(tmp_path: Path) -> None:
    both = ["--load", EXAMPLES / "coin.py", "--load", EXAMPLES / "gru.py"]
    words = ["--tunnels", "coin", "--models", "gru", "--seeds", "2", "--out", "sweep", "--json"]
    settings = ["steps=2", "eval_sequences=32", "d_model=8", "layers=1", "warmup=1"]
    done = bayesattn(tmp_path, *both, "sweep", *words, "--settings", *settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--load takes a Python file"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "own_file.py"
    if content is not None:
        file.write_text(content)
    done = bayesattn(tmp_path, "--load", file, "tunnels")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_named_as_another_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "json.py").write_text("")
    done = bayesattn(tmp_path, "--load", "own/json.py", "tunnels")
    assert done.returncode == 2
    assert "another module is called json; rename the file" in done.stderr
