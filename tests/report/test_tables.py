"""Tables and JSON show the numbers of the rows, all of them, in 80 columns."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from bayesattn_fast.evaluation import METRICS, evaluate
from bayesattn_fast.report import (
    comparison_json,
    comparison_tables,
    length_table,
    read_run,
    read_runs,
    result_table,
    summary_json,
)
from bayesattn_fast.report.numbers import number
from bayesattn_fast.report.tables import NARROW
from tests.evaluation.urn import Urn
from tests.report.runs import make_run, noisy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "urn", longer=7)


def printed(table: object, width: int = 80) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def cells(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name} "))
    return line.replace(name, "", 1).split()


def test_every_line_of_the_table_holds_the_numbers_of_its_predictor(run: Path) -> None:
    results = read_run(run).results
    text = printed(result_table(results.rows))
    for seed in results.seeds:
        assert cells(text, f"seed {seed}") == [number(results.per_seed(metric)[seed]) for metric in NARROW]
    assert cells(text, "mean of 3 seeds") == [number(results.summary(metric).mean) for metric in NARROW]
    for name in results.references:
        assert cells(text, name) == [number(results.summary(metric, name).mean) for metric in NARROW]
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_one_seed_has_no_mean_and_no_interval() -> None:
    urn = Urn()
    text = printed(result_table(evaluate(noisy(urn, 0.1), urn, [7], sequences=20).to_rows()))
    assert len(cells(text, "model, seed 7")) == len(NARROW)
    assert "interval" not in text
    assert "mean of" not in text


def test_many_seeds_are_summed_up_and_the_diverged_ones_still_named() -> None:
    urn = Urn()
    rows = evaluate(noisy(urn, 0.1), urn, range(12), sequences=20, diverged={5: 30}).to_rows()
    text = printed(result_table(rows))
    assert "seed 5 (diverged)" in text
    assert "seed 4" not in text
    assert "mean of 11 seeds" in text


def test_length_table_sets_trained_and_further_positions_apart(run: Path) -> None:
    record = read_run(run)
    table = length_table(record.rows)
    assert table is not None
    summary = summary_json([row for row in record.rows if row["scored"] == 7])
    model = summary["spans"]
    expected = [number(model[span]["model"][metric]) for metric in ("kl", "entropy_abs_error") for span in model]
    assert cells(printed(table), "model") == ["5", "+", "2", *expected]
    assert length_table([row for row in record.rows if row["scored"] == 5]) is None


def test_json_holds_every_metric_and_no_number_that_json_lacks(run: Path) -> None:
    results = read_run(run).results
    summary = json.loads(json.dumps(summary_json(results.rows), allow_nan=False))
    assert summary["metrics"].keys() == METRICS.keys()
    for metric, values in summary["metrics"].items():
        assert values["mean"] == results.summary(metric).mean
        assert values["low"] <= values["mean"] <= values["high"]
        assert values["per_seed"] == {str(seed): value for seed, value in results.per_seed(metric).items()}
    assert summary["references"].keys() == set(results.references)
    assert summary["spans"] == {}


def test_infinite_scores_are_null_in_json() -> None:
    urn = Urn()
    certain = evaluate(lambda inputs: urn.predictive(inputs).roll(1, -1).log(), urn, [0, 1], sequences=20)
    summary = json.loads(json.dumps(summary_json(certain.to_rows()), allow_nan=False))
    assert summary["metrics"]["kl"]["mean"] is None
    assert summary["metrics"]["tvd"]["mean"] > 0


def test_runs_of_one_task_share_a_table_and_others_get_their_own(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "good", noise=0.05, sequences=30),
        make_run(tmp_path / "poor", noise=1.0, sequences=30),
        make_run(tmp_path / "other", tunnel=Urn(draws=4), sequences=30),
    ]
    records = read_runs(folders)
    text = "".join(printed(table) for table in comparison_tables(records))
    assert text.count("exact posterior") == 2
    for label, record in records.items():
        expected = [number(record.results.summary(metric).mean) for metric in NARROW]
        assert cells(text, f"{label} (3)") == expected
    values = comparison_json(records)
    assert values["good"]["metrics"]["kl"]["mean"] < values["poor"]["metrics"]["kl"]["mean"]
    assert values["other"]["tunnel"]["draws"] == 4


def test_runs_are_labelled_by_folder_and_by_path_where_names_clash(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a" / "run", sequences=5), make_run(tmp_path / "b" / "run", sequences=5)
    assert set(read_runs([first, second])) == {str(first), str(second)}
    assert set(read_runs([first])) == {"run"}
    with pytest.raises(ValueError, match="same run folder twice"):
        read_runs([first, first / ".." / "run"])
    with pytest.raises(ValueError, match="at least one"):
        read_runs([])
