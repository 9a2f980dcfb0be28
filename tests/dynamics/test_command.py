"""bayesattn dynamics em-vs-sgd: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest

from bayesattn_fast.cli import main

SHORT = ["dynamics", "em-vs-sgd", "--seeds", "3", "--length", "60", "--steps", "20", "--rates", "0.1", "1"]


def test_json_holds_the_numbers_of_every_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--out", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [0, 1, 2]
    assert {s["schedule"] for s in found["schedules"]} == {
        *("sgd 0.1", "em 0.1", "sgd 1", "em 1"),
        *("query 0.1", "key 0.1", "routing 0.1", "readout 0.1"),
    }
    em = next(s for s in found["schedules"] if s["schedule"] == "em 0.1")
    assert em["rates"] == pytest.approx([0.1, 0.1, 1.0, 0.1])
    assert em["loss"]["low"] < em["loss"]["mean"] < em["loss"]["high"]
    assert all(0 <= p["p"] <= 1 for p in found["paired"] if p["p"] is not None)


def test_the_page_is_whole_and_fetches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    page = (tmp_path / "run/report.html").read_text()
    assert str(tmp_path / "run/report.html") in capsys.readouterr().out.replace("\n", "")
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace("http-equiv", "")
    assert "bayesattn dynamics em-vs-sgd --seeds 3" in page
    for name in ("curves", "speedup", "held-out"):
        assert (tmp_path / f"run/figures/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_folder_serves_the_same_numbers_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHORT, "--out", str(tmp_path / "run"), "--json"]
    main(words)
    first = capsys.readouterr().out
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "run/shards").iterdir()}
    main(words)
    assert capsys.readouterr().out == first
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "run/shards").iterdir()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rates", "0.1", "-1"], "rates must be positive"),
        (["--steps", "30"], "steps must be a multiple of 20"),
        (["--methods", "em"], "methods must be sgd and others"),
        (["--length", "2"], "length must be at least 3"),
        (["--seeds", "1,1"], "seeds must differ"),
    ],
)
def test_a_wrong_flag_is_answered_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dynamics", "em-vs-sgd", "--out", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_unknown_experiment_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dynamics", "em-vs-sgb"]) == 2
    assert "did you mean em-vs-sgd?" in capsys.readouterr().err
