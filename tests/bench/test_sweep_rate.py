"""The rate of a sweep is taken while every worker is busy."""

import pytest

from bench.bench_sweep import Rate, rate


def test_with_one_worker_the_first_pack_starts_the_clock() -> None:
    done = [(10.0, 50), (12.0, 50), (14.0, 50)]
    assert rate(1, 0.0, done, 15.0) == Rate(1, 100 / 4.0, pytest.approx(10.0))


def test_with_two_workers_it_runs_from_both_first_packs_to_the_first_idle_worker() -> None:
    # Packs end in pairs; after the seventh one worker has nothing left to do.
    done = [(float(t), 10) for t in (5, 6, 7, 8, 9, 10, 11, 14)]
    found = rate(2, 0.0, done, 16.0)
    assert found.steady == pytest.approx(5 * 10 / (11 - 6))
    assert found.whole == pytest.approx(80 / 16)
