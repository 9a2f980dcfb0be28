"""bayesattn dynamics two-timescale: what it counts, says, writes and refuses."""

import json
from pathlib import Path

import pytest

from bayesattn_fast.cli import main
from bayesattn_fast.dynamics.two_timescale import Settled
from bayesattn_fast.dynamics.two_timescale_page import by_head, lead_of_routing, verdict

SMALL = "--layers 2 --d-model 16 --heads 2 --batch 8 --eval-sequences 16 --warmup 5 --steps 30 --seeds 2 --quiet"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-timescale") / "run"
    assert main(["train", "bijection", *SMALL.split(), "--out", str(folder)]) == 0
    return folder


def test_a_head_is_the_median_of_its_seeds_and_one_that_never_settles_counts_as_last() -> None:
    found = [Settled(seed, 0, 1, routing, values) for seed, routing, values in ((0, 3, 9), (1, 5, None), (2, 8, None))]
    (head,) = by_head(found)
    assert (head.name, head.routing, head.values) == ("layer 0, head 1", 5, None)
    assert head.counts == {"routing": 3, "values": 0, "together": 0, "neither": 0}
    assert head.cells() == ["5", "until the end", "3", "0", "0", "0"]


def test_the_lead_is_the_heads_of_routing_less_those_of_values_over_all_heads() -> None:
    seed = [Settled(0, 0, head, *at) for head, at in enumerate([(1, 2), (1, 2), (2, 1), (4, 4)])]
    assert lead_of_routing(seed).mean == pytest.approx(0.25)


def heads(routing: int, values: int) -> list[Settled]:
    return [Settled(seed, 0, head, routing, values) for seed in range(3) for head in range(2)]


def test_the_verdict_needs_the_control_too() -> None:
    first, second = heads(10, 20), heads(20, 10)
    assert verdict(first, first, 0.05).kind == "close"
    assert verdict(first, second, 0.05).kind == "partial"
    assert verdict(second, first, 0.05).kind == "nothing"
    assert "in 6, values in 0" in verdict(first, second, 0.05).text


def test_the_command_prints_what_it_measured_and_writes_a_whole_page(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dynamics", "two-timescale", str(run), "--probes", "8", "--sequences", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drift"] == 0.0
    for group in ("threshold", "share_of_start"):
        assert {(s["seed"], s["layer"], s["head"]) for s in found[group]} == {
            (seed, layer, head) for seed in (0, 1) for layer in (0, 1) for head in (0, 1)
        }
    page = Path(found["report"]).read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page
    assert "layer 1, head 1" in page
    assert f"bayesattn dynamics two-timescale {run} --probes 8" in page


def test_another_threshold_is_read_from_what_was_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dynamics", "two-timescale", str(run), "--probes", "5", "--sequences", "2"]
    assert main(words) == 0
    assert "training" in capsys.readouterr().err
    assert main([*words, "--threshold", "0.9"]) == 0
    shown = capsys.readouterr()
    assert "training" not in shown.err
    assert "below 0.9" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", "1.5"], "--threshold must lie between 0 and 1; got 1.5"),
        (["--probes", "1"], "probes must be at least 3; got 1"),
        (["--sequences", "0"], "sequences must be at least 1; got 0"),
    ],
)
def test_a_wrong_flag_is_answered_in_one_line(
    run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dynamics", "two-timescale", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_folders_that_hold_nothing_to_probe_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, *flags in (("short", "--steps", "1"), ("mlp", "--steps", "2", "--model", "mlp")):
        out = ("--batch", "4", "--eval-sequences", "8", "--quiet", "--out", str(tmp_path / name))
        assert main(["train", "bijection", *flags, *out]) == 0
    capsys.readouterr()
    for name, said in (
        ("none", "there is no run folder"),
        ("short", "stands at step 1; two-timescale takes runs of at least 2 steps"),
        ("mlp", "holds a mlp; two-timescale takes runs of transformers"),
    ):
        assert main(["dynamics", "two-timescale", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
