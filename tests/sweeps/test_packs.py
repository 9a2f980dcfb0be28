"""Packs: how seeds are grouped, and that a seed's numbers do not depend on who else is in the pack."""

import io

import pyarrow.parquet as pq
import pytest

from bayesattn_fast.sweeps import make_plan, sweep_of
from bayesattn_fast.sweeps.plan import memory
from bayesattn_fast.sweeps.store import Done
from bayesattn_fast.sweeps.work import Pack, cell_key, train_pack
from tests.sweeps.tiny import tiny

HEAD = {"seeds": 32, "single_head": {"length": 40, "steps": 40, "rates": [0.1], "methods": ["sgd", "em"]}}


def rows(pack: Pack) -> list[dict]:
    content = train_pack(pack)
    assert content is not None
    return pq.read_table(io.BytesIO(content)).to_pylist()


@pytest.mark.parametrize("kind", ["models", "single head"])
def test_a_seed_scores_the_same_alone_and_packed(kind: str) -> None:
    sweep = sweep_of(tiny(seeds=32, tunnels=["bijection"]) if kind == "models" else HEAD)
    for cell in sweep.cells:
        found = {size: [] for size in (1, 4, 32)}
        for size in found:
            for first in range(0, min(32, 4 * size), size):
                found[size] += rows(Pack(cell, sweep.seeds[first : first + size]))
        key = {(row["seed"], row.get("schedule")): row for row in found[32]}
        for row in found[1] + found[4]:
            whole = key[row["seed"], row.get("schedule")]
            assert row.keys() == whole.keys()
            for name, value in row.items():
                close = value if isinstance(value, str) else pytest.approx(whole[name], abs=1e-5, rel=1e-5)
                assert value == close, (cell.name, row["seed"], name)


def test_a_plan_covers_what_is_missing_and_nothing_twice() -> None:
    sweep = sweep_of(tiny(seeds=10))
    first, second = cell_key(sweep.cells[0]), cell_key(sweep.cells[1])
    done = Done({first: set(range(10)), second: {3, 5}})
    plan = make_plan(sweep, done, workers=2, pack=4)
    planned = [(cell_key(p.cell), seed) for p in plan.packs for seed in p.seeds]
    assert len(planned) == len(set(planned)) == 6 * 10 - 12
    assert not {(first, s) for s in range(10)} & set(planned)
    assert {(second, 3), (second, 5)}.isdisjoint(planned)
    assert max(len(p.seeds) for p in plan.packs) == 4
    assert plan.seconds > 0


def test_the_measured_memory_grows_with_the_model() -> None:
    small, large = (
        make_plan(sweep_of(tiny(seeds=1, tunnels=["recall"], models=["transformer"], model=size)), Done(), workers=1)
        for size in ({}, {"transformer": {"d_model": 64, "layers": 2}})
    )
    bytes_of = [next(iter(plan.costs.values())).bytes for plan in (small, large)]
    assert bytes_of[1] > 8 * bytes_of[0]


def test_one_seed_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesattn_fast.sweeps.plan.memory", lambda device: 1000)
    with pytest.raises(ValueError, match=r"one seed needs .* bytes and a worker has 250"):
        make_plan(sweep_of(tiny(seeds=1)), Done(), workers=2)


def test_free_memory_is_a_plausible_number() -> None:
    assert 1 << 26 < memory() < 1 << 44
