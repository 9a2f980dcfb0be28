"""A verdict follows from the numbers: planted results get the word that the rule says, missing ones are called so."""

from pathlib import Path
from typing import Any

import pytest

from bayesattn_fast import cli
from bayesattn_fast.reproduce import ablations, geometry, table2
from bayesattn_fast.reproduce.claims import judged, shown, spread
from bayesattn_fast.reproduce.experiments import EXPERIMENTS

EMPTY: dict[str, dict[str, Any]] = {
    "table2": {"cells": []},
    "length-generalisation": {"lengths": []},
    "ablations": {"parts": []},
    "geometry": {"states": []},
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_was_not_trained_is_not_judged(name: str) -> None:
    found = EXPERIMENTS[name].claims(EMPTY[name])
    assert found
    assert {claim.verdict for claim in found} == {"not run at this scale"}


def parts(whole: list[float], **others: list[float]) -> dict[str, Any]:
    named = {"whole": whole, **{name.replace("_", " ").replace("x", "."): kl for name, kl in others.items()}}
    return {"parts": [{"tunnel": "bijection", "part": name, "kl": kl} for name, kl in named.items()]}


def verdicts(result: dict[str, Any]) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in ablations.claims(result)}


def test_a_head_that_costs_ten_times_the_next_is_the_frame_and_equal_heads_are_none() -> None:
    text = "One layer-0 head stands out: the hypothesis frame (bijection)"
    one = parts([0.01, 0.01], head_0x0=[0.02, 0.02], head_0x1=[0.51, 0.51], layer_0=[1.0, 1.0])
    assert verdicts(one)[text] == "holds"
    equal = parts([0.01, 0.01], head_0x0=[0.5, 0.5], head_0x1=[0.51, 0.51], layer_0=[1.0, 1.0])
    assert verdicts(equal)[text] == "does not hold"


def test_a_layer_that_is_not_needed_breaks_the_claim_of_all() -> None:
    text = "Removing any layer raises the error more than 10 times (bijection)"
    heads = {"head_0x0": [0.02], "head_0x1": [0.03]}
    assert verdicts(parts([0.01], layer_0=[0.2], layer_1=[0.3], **heads))[text] == "holds"
    assert verdicts(parts([0.01], layer_0=[0.2], layer_1=[0.02], **heads))[text] == "holds in part"
    assert verdicts(parts([0.01], layer_0=[0.02], layer_1=[0.02], **heads))[text] == "does not hold"


def test_attention_that_rests_while_the_error_falls_holds() -> None:
    result = {
        "states": [],
        "trajectory": {"steps": [0, 1, 2], "distance": [[1], [0.05], [0]], "kl": [[1], [0.5], [0.1]]},
    }
    (found,) = [c for c in geometry.claims(result) if c.text.startswith("Attention settles")]
    assert found.verdict == "holds"
    assert "at steps 1;" in found.ours


class Scored:
    """Stands for results of one seed: KL of the model, of the blind predictors, and of the window filter."""

    def __init__(self, kl: float) -> None:
        self.seeds, self.diverged = (0,), {}
        self.levels = {"model": kl, "window 3": 0.01}

    def per_seed(self, metric: str, predictor: str) -> dict[int, float]:
        return {0: self.levels.get(predictor, 1.0)}


@pytest.mark.parametrize(
    ("kl", "bijection", "hmm"),
    [(0.005, "yes", "yes"), (0.04, "yes", "partly"), (0.3, "partly", "partly"), (0.7, "no", "no")],
)
def test_a_primitive_is_realised_by_the_stated_rule(kl: float, bijection: str, hmm: str) -> None:
    assert table2.realised(Scored(kl), "bijection") == bijection  # type: ignore[arg-type]
    assert table2.realised(Scored(kl), "hmm") == hmm  # type: ignore[arg-type]


def test_intervals_are_shown_and_one_seed_has_none() -> None:
    assert shown(spread([1.0, 1.0, 1.0])) == "1.00 [1.00, 1.00]"
    assert shown(spread([0.5])) == "0.500"
    assert (judged(True), judged(False, True), judged(False)) == ("holds", "holds in part", "does not hold")


def test_mistakes_on_the_command_line_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "tabel2"]) == 2
    assert "unknown experiment 'tabel2'; did you mean table2?" in capsys.readouterr().err
    assert cli.main(["reproduce", "ablations", "--no-train", "--out", str(tmp_path)]) == 2
    assert "nothing that ablations needs is trained" in capsys.readouterr().err
