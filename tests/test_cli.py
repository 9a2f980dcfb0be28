"""The command line: what it prints, how it refuses, and that refusing leaves every file as it was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bayesattn_fast.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
TINY = (
    *("--layers", "1", "--d-model", "16", "--heads", "2", "--batch", "8", "--steps", "6"),
    *("--eval-sequences", "32", "--warmup", "2", "--quiet"),
)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line with which the command refuses; anything else fails the test."""
    code = main([str(word) for word in words])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert shown.err.startswith("bayesattn: ")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return shown.err.strip()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "bijection", "--seeds", "2", "--out", str(folder), *TINY]) == 0
    return folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["train", "bijektion"], "unknown tunnel 'bijektion'; did you mean bijection?"),
        (["train", "--seeds", "3"], "train takes the tunnel first"),
        (["train", "bijection", "--preset", "huge"], "unknown preset 'huge' (accepted: quick, paper)"),
        (["train", "bijection", "--symbols", "1", "--pairs", "1"], "symbols must be an integer of at least 2; got 1"),
        (["train", "bijection", "--symbols", "8", "--pairs", "9"], "pairs"),
        (["train", "bijection", "--seeds", "a:b"], "seeds must be"),
        (["train", "bijection", "--seeds", "0"], "seeds must name at least one seed"),
        (["train", "bijection", "--seeds", "3:3"], "seeds"),
        (["train", "bijection", "--steps", "many"], "--steps"),
        (["train", "bijection", "--steps", "-5"], "steps"),
        (["train", "bijection", "--lr", "nan"], "lr"),
        (["train", "bijection", "--learning-rate", "1"], "--learning-rate"),
        (["train", "bijection", "--model", "rnn"], "rnn"),
        (["train", "bijection", "--device", "tpu"], "--device must be cpu, cuda or cuda:N; got 'tpu'"),
        (["train", "bijection", "--d-model", "30", "--heads", "4"], "heads"),
        (["train", "hmm", "--max-length", "20"], "max_length must cover the tunnel's 73 positions"),
        (["train", "recall", "--pairs", "40", "--symbols", "8"], "pairs"),
        (["eval", "nowhere"], "there is no run folder nowhere"),
        (["report", "nowhere"], "nowhere"),
        (["resume", "nowhere"], "there is no run folder nowhere"),
        (["compare", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_answered_in_one_line_that_names_it(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/proc/runs" in refused(capsys, "train", "bijection", "--out", "/proc/runs/mine", *TINY)


def test_a_file_in_the_place_of_the_folder_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert "is a file" in refused(capsys, "train", "bijection", "--out", tmp_path / "notes", *TINY)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_second_run_into_the_same_folder_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    assert "already holds a run" in refused(capsys, "train", "bijection", "--out", run, *TINY)
    assert contents(run) == before


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_a_truncated_checkpoint_is_refused(
    command: str, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for name, content in contents(run).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    file = folder / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    before = contents(folder)
    assert "checkpoint.safetensors is damaged" in refused(capsys, command, folder)
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["config.json", "metrics.parquet"])
def test_a_malformed_file_is_named(name: str, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for file, content in contents(run).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    (tmp_path / name).write_bytes(b"{ not what it was")
    assert name in refused(capsys, "report", tmp_path)


def test_json_results_are_the_numbers_of_the_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)
    assert main(["eval", str(run), "--sequences", "32", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert kept["metrics"]["kl"] == again["metrics"]["kl"]


def test_a_run_scored_at_another_length_is_scored_against_the_truth_of_that_length(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--sequences", "16", "--scored", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scored"] == 3
    assert found["metrics"]["bayes_entropy_bits"]["mean"] == pytest.approx((3 + 2.807354922 + 2.584962501) / 3)


def test_the_tunnels_are_listed_with_both_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tunnels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["tunnel"], row["preset"]) for row in rows} == {
        (tunnel, preset)
        for tunnel in ("bijection", "hmm", "regression", "recall", "markov")
        for preset in ("quick", "paper")
    }
    assert all(row["scored"] <= row["length"] for row in rows)


def test_doctor_names_an_implementation_for_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "hmm" in found["ops"]
    for served in found["ops"].values():
        assert served["cpu"].startswith(("cpu", "reference"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([command, "--help"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 0
    assert f"bayesattn {command}" in capsys.readouterr().out


def test_an_interrupted_command_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["train", "bijection", "--out", str(folder), *TINY, "--steps", "400"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bayesattn_fast", *[word for word in words if word != "--quiet"]]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as child:
        assert child.stderr is not None
        seen = ""
        for line in child.stderr:
            seen += line
            if "step" in line and "loss" in line:
                child.send_signal(signal.SIGINT)
                break
        seen += child.stderr.read()
        assert child.wait() == 130
    assert f"go on with: bayesattn resume {folder}" in seen
    assert "Traceback" not in seen
    assert json.loads((folder / "state.json").read_text())["step"] > 0


def test_importing_the_package_neither_imports_triton_nor_compiles(tmp_path: Path) -> None:
    code = (
        "import sys, bayesattn_fast; from bayesattn_fast import backend, train; "
        "print([name for name in ('triton', 'scipy', 'matplotlib', 'pyarrow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BAYESATTN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
    assert not (tmp_path / "cache").exists()
