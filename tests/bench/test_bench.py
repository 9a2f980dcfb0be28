"""The benchmark refuses what is wrong, catches what became slow, and says what it could not do."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesattn_fast.bench import against, record
from bayesattn_fast.bench.case import OURS, Case, Contender, Draw, Prepared, Shape
from bayesattn_fast.bench.cases import OPS, cases_of
from bayesattn_fast.bench.limits import Cost, Limits
from bayesattn_fast.bench.record import FAILED, MISSING, REFUSED, TIMED, Record, Row
from bayesattn_fast.bench.runner import Settings, check, measure_case, run
from bayesattn_fast.bench.timing import by_clock
from bayesattn_fast.cli import main

CPU = torch.device("cpu")
LIMITS = Limits(((2**20, 1e10),), {"float32": 1e11}, 1e9)


def a_case(ours: Callable[[Tensor], Tensor], peer: Callable[[Tensor], Tensor] = torch.exp) -> Case:
    """Exponentials of 512 numbers."""

    def prepare(draw: Draw, shape: Shape) -> Prepared:
        x = draw.normal(shape["N"])
        contenders = {OURS: Contender(lambda: ours(x)), "peer": Contender(lambda: peer(x))}
        return Prepared(contenders, lambda: (x.double().exp(),), {"absent": "ImportError: not here"})

    return Case(
        "exp", "forward", {"N": 512}, torch.float32, "tunnel", "numbers", 512, Cost(4096, 0, 512), 1e-6, prepare
    )


def rows_of(case: Case, rounds: int = 25) -> dict[str, Row]:
    rows = measure_case(case, Settings(rounds=rounds, budget_s=2), 0, LIMITS, by_clock(time.process_time))
    return {row.contender: row for row in rows}


def a_record(case: Case) -> Record:
    found = {"processor": "a CPU", "threads": 1}
    return Record(found, LIMITS.to_dict(), {}, tuple(rows_of(case).values()))


def slowed(milliseconds: float) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        end = time.process_time() + milliseconds / 1e3  # other work on the machine does not show in it
        while time.process_time() < end:
            pass
        return x.exp()

    return run


def test_a_wrong_kernel_is_refused_before_it_is_timed() -> None:
    calls = []

    def wrong(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x.exp() * 1.001

    rows = rows_of(a_case(wrong))
    assert list(rows) == [OURS]
    assert rows[OURS].status == REFUSED
    assert rows[OURS].error == pytest.approx(1e-3, rel=1e-2)
    assert rows[OURS].median is None
    assert len(calls) == 1


def test_a_wrong_peer_is_named_and_the_others_are_timed() -> None:
    rows = rows_of(a_case(torch.exp, lambda x: x.exp() + 1))
    assert {name: row.status for name, row in rows.items()} == {OURS: TIMED, "peer": REFUSED, "absent": MISSING}


def test_a_kernel_that_yields_nan_is_refused() -> None:
    assert rows_of(a_case(lambda x: x.exp() * torch.nan))[OURS].status == REFUSED


@pytest.fixture
def _known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that were measured before: measuring them takes seconds."""
    monkeypatch.setattr("bayesattn_fast.bench.runner.measure_limits", lambda device, threads: LIMITS)


@pytest.mark.usefixtures("_known_limits")
def test_a_case_that_raises_is_a_row_and_the_next_one_goes_on() -> None:
    def broken(draw: Draw, shape: Shape) -> Prepared:
        raise RuntimeError("no such kernel")

    good = a_case(torch.exp)
    found = run([replace(good, work="broken", prepare=broken), good], Settings(rounds=3, budget_s=0.1))
    assert [row.status for row in found.rows if row.contender == OURS] == [FAILED, TIMED]
    assert "no such kernel" in found.rows[0].reason
    assert len(found.faults) == 1


def test_a_kernel_that_is_wrong_only_at_full_size_is_refused() -> None:
    case = a_case(lambda x: x.exp() * (1 if len(x) < 512 else 1.01))
    row = rows_of(replace(case, checked={"N": 64}))[OURS]
    assert row.status == REFUSED
    assert "at full size" in row.reason


def test_a_deliberately_slowed_kernel_is_caught() -> None:
    before, after = a_record(a_case(slowed(1.0))), a_record(a_case(slowed(2.0)))
    (change,) = against.compare(before, after)
    assert change.verdict == "slower"
    assert change.p < against.LEVEL
    (back,) = against.compare(after, before)
    assert back.verdict == "faster"


def test_a_slower_machine_is_not_taken_for_a_slower_kernel() -> None:
    before = a_record(a_case(slowed(1.0), slowed(2.0)))
    after = a_record(a_case(slowed(2.0), slowed(4.0)))
    (change,) = against.compare(before, after)
    assert change.drift == pytest.approx(2.0, rel=0.1)
    assert change.verdict == "same"


def test_records_of_another_machine_are_not_compared() -> None:
    here = a_record(a_case(torch.exp))
    there = replace(here, environment={**here.environment, "processor": "another CPU"})
    with pytest.raises(ValueError, match="another machine: another CPU"):
        against.compare(there, here)


def test_holm_is_the_textbook_correction() -> None:
    assert against.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    before = a_record(a_case(torch.exp))
    path, table = record.save(before, tmp_path / "kept")
    after = record.load(path)
    assert [replace(row, samples=()) for row in after.rows] == [replace(row, samples=()) for row in before.rows]
    assert len(table.read_text().splitlines()) == 1 + len(before.rows)


def test_the_floor_is_set_by_the_scarcest_resource() -> None:
    floor = LIMITS.floor(Cost(bytes=1e10, operations=1e10, exps=2e9), "float32")
    assert floor == (type(floor))(2.0, "exp")


@pytest.mark.parametrize("op", OPS)
def test_every_contender_of_every_case_equals_float64(op: str) -> None:
    for case in {(case.work, case.precision): case for case in cases_of([op], "tunnel")}.values():
        found = check(case, CPU, 1)
        assert OURS in found.errors, [row.reason for row in found.rows.values()]
        wrong = {name: row.reason for name, row in found.rows.items() if row.status != MISSING}
        assert not wrong, case.name
        assert len(found.errors) > 1, f"{case.name} has no peer"


@pytest.mark.usefixtures("_known_limits")
def test_the_command_prints_saves_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    assert main(["bench", "elimination", "--budget", "0.05", "--save", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "vectorised torch" in shown
    assert "limits measured here" in shown
    code = main(["bench", "elimination", "--budget", "0.05", "--against", str(folder)])
    assert code in (0, 1)
    assert f"of {len(cases_of(['elimination'], 'tunnel'))} cases slower" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hmn"], "unknown op 'hmn'; did you mean hmm?"),
        (["--against", "nowhere.json"], "nowhere.json does not exist"),
        (["--budget", "0"], "--budget > 0"),
    ],
)
def test_mistakes_are_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1
