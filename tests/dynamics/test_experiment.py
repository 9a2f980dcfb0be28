"""The sticky-chain experiment: its data, its shards, and what it says of them."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from scipy import stats

from bayesattn_fast.dynamics import Experiment, Summary, run, schedules
from bayesattn_fast.dynamics.summary import first_below, paired
from bayesattn_fast.ops.single_head import single_head_step
from bayesattn_fast.storage import read_table
from bayesattn_fast.tunnels.markov import Markov
from tests.closeness import assert_close

SMALL = Experiment(steps=40, length=120, rates=(0.05, 0.5), record_every=10)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("dynamics")
    return folder, run(SMALL, [3, 4, 5], folder)


def test_schedules_are_sgd_em_and_every_matrix_in_turn() -> None:
    rates = {s.name: s.rates for s in schedules([0.1, 0.01])}
    assert rates["sgd 0.01"] == (0.01,) * 4
    assert rates["sgd 0.1"] == (0.1,) * 4
    assert rates["em 0.01"] == (0.01, 0.01, 0.1, 0.01)
    assert rates["query 0.01"] == (0.1, 0.01, 0.01, 0.01)
    assert rates["key 0.01"] == (0.01, 0.1, 0.01, 0.01)
    assert rates["routing 0.01"] == (0.1, 0.1, 0.01, 0.01)
    assert rates["readout 0.01"] == (0.01, 0.01, 0.01, 0.1)


def test_a_row_is_gradient_descent_on_the_seeds_chain(finished: tuple[Path, list[dict]]) -> None:
    row = next(r for r in finished[1] if r["seed"] == 4 and r["schedule"] == "em 0.05")
    batch = Markov(chain=120, authors_matrix=True).sample([4], 0, 1)
    weights = SMALL.weights([4])
    for t in range(41):
        step = single_head_step(batch.inputs, batch.targets, *weights)
        assert_close(torch.tensor(row["loss"][t]), step.loss[0], 1e-5, f"loss at {t}")
        weights = [w - r * d for w, r, d in zip(weights, (0.05, 0.05, 0.5, 0.05), step[1:], strict=True)]


def test_all_schedules_of_a_seed_start_from_the_same_loss(finished: tuple[Path, list[dict]]) -> None:
    for seed in (3, 4, 5):
        assert len({row["loss"][0] for row in finished[1] if row["seed"] == seed}) == 1


def test_no_model_beats_the_exact_filter_by_more_than_chance(finished: tuple[Path, list[dict]]) -> None:
    for row in finished[1]:
        assert min(row["held_out_loss"]) > row["filter_loss"] - 0.1


def test_an_interrupted_sweep_trains_only_what_is_missing(finished: tuple[Path, list[dict]], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "copy")
    (tmp_path / "copy/shards/seed-4.parquet").unlink()
    stamps = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "copy/shards").iterdir()}
    again = run(SMALL, [3, 4, 5], tmp_path / "copy")
    assert again == finished[1]
    for name, stamp in stamps.items():
        assert (tmp_path / "copy/shards" / name).stat().st_mtime_ns == stamp


def test_seeds_trained_together_give_the_rows_of_seeds_trained_alone(
    finished: tuple[Path, list[dict]], tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path / "copy")
    (tmp_path / "copy/shards/seed-4.parquet").unlink()
    (tmp_path / "copy/shards/seed-5.parquet").unlink()
    done: list[tuple[int, int]] = []
    again = run(SMALL, [3, 4, 5], tmp_path / "copy", lambda *at: done.append(at), together=2)
    assert again == finished[1]
    assert done == [(1, 3), (2, 4), (3, 5)]
    assert read_table(tmp_path / "copy/shards/seed-5.parquet") == [r for r in finished[1] if r["seed"] == 5]


def test_a_rate_added_later_joins_the_shard(finished: tuple[Path, list[dict]], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "copy")
    wider = Experiment(steps=40, length=120, rates=(0.05, 0.2, 0.5), record_every=10)
    rows = run(wider, [3], tmp_path / "copy")
    assert {r["schedule"] for r in rows} == {s.name for s in wider.schedules}
    old = [r for r in finished[1] if r["seed"] == 3]
    assert read_table(tmp_path / "copy/shards/seed-3.parquet")[: len(old)] == old


def test_a_folder_of_another_experiment_is_refused(finished: tuple[Path, list[dict]]) -> None:
    with pytest.raises(ValueError, match="steps 40, not 50"):
        run(Experiment(steps=50, length=120, rates=(0.05, 0.5), record_every=10), [3], finished[0])


def test_a_diverged_run_is_counted_and_left_out_of_means(tmp_path: Path) -> None:
    wild = Experiment(steps=20, length=60, rates=(0.05, 1e4), record_every=10)
    summary = Summary(wild, run(wild, [1, 2], tmp_path))
    assert summary.diverged("sgd 10000") == 2
    assert summary.mean("sgd 10000", "loss").seeds == 0
    assert summary.mean("sgd 0.05", "loss").seeds == 2
    assert summary.best("sgd").name == "sgd 0.05"


def test_paired_test_equals_scipys() -> None:
    a, b = [1.0, 2.5, 3.1, 4.7, 5.0], [0.8, 2.9, 2.2, 4.1, 4.4]
    ours, theirs = paired(a, b), stats.ttest_rel(a, b)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.difference.low == pytest.approx(theirs.confidence_interval().low, rel=1e-9)
    assert ours.effect == pytest.approx(theirs.statistic / math.sqrt(5), rel=1e-9)


def row_of(seed: int, name: str, loss: list[float], held_out: list[float]) -> dict:
    return {
        "seed": seed,
        "schedule": name,
        "diverged": False,
        "loss": loss,
        "held_out_loss": held_out,
        "recorded": [0, 2, 4],
        "filter_loss": 1.0,
    }


def test_speedup_is_the_authors_ratio_of_steps() -> None:
    small = Experiment(steps=4, length=10, rates=(0.01,), record_every=2)
    slow, fast = [2.0, 1.9, 1.8, 1.7, 1.6], [2.0, 1.5, 1.4, 1.3, 1.2]
    rows = [row_of(s, "sgd 0.01", slow, [2, 1.9, 1.8]) for s in (1, 2)]
    rows += [row_of(1, "em 0.01", fast, [2, 1.05, 1.0]), row_of(2, "em 0.01", slow, [2, 1.9, 1.8])]
    summary = Summary(small, rows, epsilon=0.1)
    # The threshold is the loss before the last of four steps, 1.7: passed at step 1 by one seed, at 4 by the other.
    found = summary.speedup("em 0.01")
    assert found.mean_step == pytest.approx(2.5)
    assert found.value == pytest.approx(4 / 2.5)
    assert (found.reached, found.seeds) == (2, 2)
    assert summary.reach("em 0.01").reached == 1
    assert summary.reach("em 0.01").median == 2
    assert math.isinf(summary.reach("sgd 0.01").median)


def test_first_below_is_strict() -> None:
    assert first_below([3.0, 2.0, 1.0], 2.0) == 2
    assert first_below([3.0], 2.0) is None
