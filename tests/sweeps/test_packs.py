"""Packs: how seeds are grouped, and that a seed's numbers do not depend on who else is in the pack."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bayesattn_fast.sweeps import make_plan, sweep_of
from bayesattn_fast.sweeps.plan import memory
from bayesattn_fast.sweeps.store import Done
from bayesattn_fast.sweeps.work import Pack, cell_key, train_pack
from bayesattn_fast.training import Engine
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
                found[size] += rows(Pack.of(cell, sweep.seeds[first : first + size]))
        key = {(row["seed"], row.get("schedule")): row for row in found[32]}
        for row in found[1] + found[4]:
            whole = key[row["seed"], row.get("schedule")]
            assert row.keys() == whole.keys()
            for name, value in row.items():
                close = value if isinstance(value, str) else pytest.approx(whole[name], abs=1e-5, rel=1e-5)
                assert value == close, (cell.name, row["seed"], name)


RATES = tiny(
    seeds=4,
    tunnels=["bijection"],
    models=["transformer"],
    settings={**tiny()["settings"], "steps": 40, "lr": [3e-3, 1e-2, 3e-4]},
)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "em"])
def test_learning_rates_share_a_pack_and_change_no_seed(optimizer: str) -> None:
    sweep = sweep_of({**RATES, "settings": {**RATES["settings"], "optimizer": optimizer}})
    (together,) = make_plan(sweep, Done(), workers=1, pack=12).packs
    assert [len(seeds) for _, seeds in together.parts] == [4, 4, 4]
    joined = {(row["lr"], row["seed"]): row for row in rows(together)}
    assert len(joined) == 12
    for cell in sweep.cells:
        for alone in rows(Pack.of(cell, sweep.seeds)):
            for name, value in joined[alone["lr"], alone["seed"]].items():
                close = alone[name] if isinstance(value, str) else pytest.approx(alone[name], abs=1e-5, rel=1e-5)
                assert value == close, (cell.name, alone["seed"], name)


def test_what_differs_in_more_than_the_rate_shares_no_pack() -> None:
    sweep = sweep_of(
        tiny(models=["mlp"], tunnels=["recall"], settings={**tiny()["settings"], "weight_decay": [0.0, 0.1]})
    )
    assert [len(pack.parts) for pack in make_plan(sweep, Done(), workers=1, pack=8).packs] == [1, 1]


def test_a_stopped_pack_of_several_rates_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of({**RATES, "settings": {**RATES["settings"], "checkpoint_every": 10}})
    (pack,) = make_plan(sweep, Done(), workers=1, pack=12).packs
    update, calls = Engine.update, []

    def dies(engine: Engine) -> object:
        calls.append(engine.step)
        if len(calls) == 25:
            raise KeyboardInterrupt
        return update(engine)

    monkeypatch.setattr(Engine, "update", dies)
    with pytest.raises(KeyboardInterrupt):
        train_pack(pack, tmp_path / "scratch")
    content = train_pack(pack, tmp_path / "scratch")
    assert calls[25] == 20
    assert content is not None
    assert pq.read_table(io.BytesIO(content)).to_pylist() == rows(pack)


def test_a_plan_covers_what_is_missing_and_nothing_twice() -> None:
    sweep = sweep_of(tiny(seeds=10))
    first, second = cell_key(sweep.cells[0]), cell_key(sweep.cells[1])
    done = Done({first: set(range(10)), second: {3, 5}})
    plan = make_plan(sweep, done, workers=2, pack=4)
    planned = [(cell_key(cell), seed) for p in plan.packs for cell, seed in p.members]
    assert len(planned) == len(set(planned)) == 6 * 10 - 12
    assert not {(first, s) for s in range(10)} & set(planned)
    assert {(second, 3), (second, 5)}.isdisjoint(planned)
    assert max(p.size for p in plan.packs) == 4
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
