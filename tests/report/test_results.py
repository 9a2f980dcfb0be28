"""Reading results: the right evaluation is taken, seeds that diverged are left out, nothing wrong passes."""

import math
from pathlib import Path

import pytest

from bayesattn_fast.evaluation import MODEL
from bayesattn_fast.evaluation.summary import interval
from bayesattn_fast.report import read_run
from bayesattn_fast.report.numbers import listed, number
from bayesattn_fast.report.results import Results
from bayesattn_fast.storage import read_json, read_table, write_json, write_table
from tests.evaluation.urn import Urn
from tests.report.runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "urn", longer=7, diverged={1: 120})


def test_last_step_and_trained_length_are_taken(run: Path) -> None:
    results = read_run(run).results
    assert (results.step, results.scored, results.lengths) == (400, 5, (5, 7))
    assert results.steps == (0, 100, 200, 300, 400)
    longer = Results.of(read_run(run).rows, scored=7)
    assert (longer.trained, longer.spans) == (5, ("all", "trained", "beyond"))


def test_means_are_those_of_the_seeds_that_did_not_diverge(run: Path) -> None:
    results = read_run(run).results
    values = results.per_seed("kl")
    assert results.diverged == {1: 120}
    assert results.summary("kl") == interval([values[0], values[2]])
    curves = results.curve("kl")
    assert results.mean_curve("kl")[3] == interval([curves[0][3], curves[2][3]])


def test_references_come_farthest_first_and_the_exact_posterior_last(run: Path) -> None:
    results = read_run(run).results
    distances = [results.summary("kl", name).mean for name in results.comparable]
    assert distances == sorted(distances, reverse=True)
    assert results.references == (*results.comparable, "exact posterior")


def test_reference_told_more_than_the_inputs_is_no_rival(tmp_path: Path) -> None:
    record = read_run(make_run(tmp_path / "told", tunnel=_Told(), sequences=300))
    results = record.results
    assert results.informed == ("told the answer",)
    assert "told the answer" not in results.comparable
    assert results.references[-1] == "told the answer"
    assert results.warnings == []  # only a model below the floor is a bug


class _Told(Urn):
    def reference_predictors(self, batch):
        answer = batch.predictive * 0
        answer.scatter_(-1, batch.targets.unsqueeze(-1), 1.0)
        return {"told the answer": 0.5 * answer + 0.5 * batch.predictive}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "metrics.parquet").unlink(), "metrics.parquet does not exist"),
        (lambda run: (run / "losses.parquet").unlink(), "losses.parquet does not exist"),
        (lambda run: (run / "config.json").unlink(), "config.json does not exist"),
        (lambda run: (run / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda run: write_json(run / "config.json", ["urn"]), "config.json is not the configuration of a run"),
        (lambda run: write_json(run / "config.json", {"tunnel": {}, "model": {}}), "names no tunnel and model"),
        (lambda run: (run / "metrics.parquet").write_bytes(b"PAR1 no"), "metrics.parquet is not a readable Parquet"),
        (lambda run: write_table(run / "metrics.parquet", [{"seed": 0}]), "metrics.parquet lacks the columns step"),
        (lambda run: write_table(run / "losses.parquet", [{"seed": 0}]), "losses.parquet lacks the columns step"),
        (lambda run: _keep(run, lambda row: False), "lacks the column"),
        (lambda run: _keep(run, lambda row: row["predictor"] != MODEL), "no rows of the model at step 400"),
    ],
)
def test_damaged_run_is_refused_in_one_sentence(tmp_path: Path, spoil, message: str) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), sequences=5)
    spoil(run)
    with pytest.raises(ValueError) as caught:
        read_run(run)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def _keep(run: Path, wanted) -> None:
    write_table(run / "metrics.parquet", [row for row in read_table(run / "metrics.parquet") if wanted(row)])


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no run folder .*absent"):
        read_run(tmp_path / "absent")


def test_run_without_a_state_file_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), sequences=5)
    assert read_json(run / "state.json")["step"] == 400
    (run / "state.json").unlink()
    assert read_run(run).state == {}


def test_numbers_are_printed_with_three_digits_and_never_as_nan() -> None:
    values = [0.0123456, 1.1073, 0.000123, 9.66e-5, 123.4, 1e-17, 0.0, math.inf, math.nan, None, -0.5]
    printed = ["0.0123", "1.11", "0.00012", "9.7e-05", "123", "0", "0", "∞", "–", "–", "−0.500"]
    assert [number(value) for value in values] == printed


def test_long_runs_of_seeds_are_listed_as_a_range() -> None:
    assert listed([0, 1, 2]) == "0, 1, 2"
    assert listed(range(64)) == "0 to 63"
    assert listed([42, 111, 222, 1, 2, 3, 4]) == "42, 111, 222, 1, 2, 3, 4"
