"""`bayesattn verify` finds what is wrong, names it, and covers every op in every precision it takes."""

import json

import pytest
import torch
from torch import Tensor

from bayesattn_fast import backends
from bayesattn_fast.bench.cases import attention as attention_cases
from bayesattn_fast.bench.cases import cases_of
from bayesattn_fast.bench.record import FAILED, MISSING, REFUSED
from bayesattn_fast.bench.verify import verify
from bayesattn_fast.cli import main

CPU = torch.device("cpu")


@pytest.fixture
def _wrong_by_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose gradient of k is wrong."""
    right = attention_cases.attention

    def through(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        crooked = k.clone()
        crooked.register_hook(lambda dk: dk * 1.001)
        return right(q, crooked, v)

    monkeypatch.setattr(attention_cases, "attention", through)


def test_every_op_is_within_its_limits_and_none_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == 0
    # The entropy of a row is part of every posterior.
    assert {row["op"] for row in found["rows"]} == {*backends.ops()} - {"entropy"}
    for op in ("attention", "selective_scan", "causal_conv1d"):
        precisions = {row["precision"] for row in found["rows"] if row["op"] == op}
        assert precisions == {"float32", "bfloat16", "float16"}
    assert all(row["error"] <= row["limit"] for row in found["rows"])
    exact = [row for row in found["rows"] if row["limit"] == 0]
    assert {row["op"] for row in exact} == {"philox", "hmm", "regression", "elimination"}


@pytest.mark.usefixtures("_wrong_by_a_thousandth")
def test_a_wrong_gradient_is_named_and_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "attention", "--device", "cpu", "--seed", "1"]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused: ")]
    single = [line for line in wrong if "float32" in line]
    # One position has no gradient of k.
    assert [line.split(":")[2] for line in single] == [" heads 8, N 40, D 32", " heads 8, N 150, D 24"]
    assert all(
        line.startswith("refused: attention forward + backward, ") and " of dk, allowed " in line for line in wrong
    )
    assert all("relative error 0.001 of dk, allowed 3e-06" in line for line in single)


def test_one_op_that_raises_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*operands: Tensor) -> Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(attention_cases, "attention", broken)
    rows = verify(cases_of(["attention", "score"], "verify"), CPU, 1)
    failed = [row for row in rows if row.status == FAILED]
    assert {(row.op, row.work) for row in failed} == {("attention", "forward + backward")}
    assert all("no such kernel" in row.reason for row in failed)
    assert not any(row.status == REFUSED for row in rows)


def test_what_a_forced_back_end_does_not_have_is_said_and_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "philox", "score", "--device", "cpu", "--backend", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "not served: back end 'cpu' cannot take philox: has no native kernel" in shown
    with backends.backend("cpu"):
        rows = verify(cases_of(["philox"], "verify"), CPU, 1)
    assert {row.status for row in rows} == {MISSING}


def test_a_back_end_that_serves_nothing_here_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main(["verify", "score", "--device", "cpu", "--backend", "triton"]) == 2
    assert "back end 'triton' cannot take score on cpu tensors" in capsys.readouterr().err


def test_an_unknown_op_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "atention"]) == 2
    assert "unknown op 'atention'; did you mean attention?" in capsys.readouterr().err
