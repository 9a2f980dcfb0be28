"""The Triton kernels of the selective scan, run by Triton's interpreter, against the reference in float64."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels.selective_scan import reference
from tests.closeness import assert_close
from tests.interpreter import interpreted, only_result
from tests.ops import scan_cases

FORWARD = "bayesattn_fast.kernels.selective_scan.forward"
BACKWARD = "bayesattn_fast.kernels.selective_scan.backward"
NAMES = ("out", "last_state", "states", "du", "ddelta", "dA", "dB", "dC", "dD", "dz", "ddelta_bias")


@dataclass(frozen=True)
class Case:
    """Sizes and options of one call; B and C are fixed with groups = 0."""

    seeds: int = 1
    batch: int = 1
    channels: int = 5
    states: int = 4
    length: int = 11
    groups_B: int = 1
    groups_C: int = 1
    options: bool = True
    softplus: bool = True
    channel_last: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "a tail of three steps": Case(),
    "one step, one channel, one state": Case(channels=1, states=1, length=1),
    "exactly one group of steps": Case(length=8),
    "two seeds, two sequences, two groups": Case(
        seeds=2, batch=2, channels=2, states=3, length=3, groups_B=2, groups_C=2
    ),
    "more channels than a tile": Case(channels=70, states=1, length=5),
    "fixed B": Case(groups_B=0, states=5),
    "fixed C": Case(groups_C=0),
    "fixed B and C": Case(groups_B=0, groups_C=0, channels=9, states=16),
    "no options, no softplus": Case(options=False, softplus=False),
    "channel-last": Case(channel_last=True, channels=12),
    "longer than a chunk": Case(channels=2, states=3, length=75),
    "64 states": Case(channels=3, states=64, length=5),
    "bfloat16": Case(dtype=torch.bfloat16, channel_last=True),
    "float16": Case(dtype=torch.float16),
}


def draw(case: Case) -> dict[str, Any]:
    """Arguments of the forward pass, in order."""
    generator = torch.Generator().manual_seed(0)
    e, b, d, n, t = case.seeds, case.batch, case.channels, case.states, case.length

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def signal() -> Tensor:
        if case.channel_last:
            return normal(e, b, t, d).transpose(2, 3).to(case.dtype)
        return normal(e, b, d, t).to(case.dtype)

    def matrix(groups: int) -> Tensor:
        return normal(e, b, groups, n, t).to(case.dtype) if groups else normal(e, d, n)

    delta = signal() if case.softplus else signal().abs()
    return {
        "u": signal(),
        "delta": delta,
        "A": -normal(e, d, n).exp(),
        "B": matrix(case.groups_B),
        "C": matrix(case.groups_C),
        "D": normal(e, d) if case.options else None,
        "z": signal() if case.options else None,
        "delta_bias": normal(e, d) if case.options else None,
        "delta_softplus": case.softplus,
    }


def doubled(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in arguments.items()}


def both_passes(case: Case, arguments: dict[str, Any], interpret: bool) -> dict[str, Tensor | None]:
    """Every result by name; the upstream gradient of the last state is left out without options."""
    generator = torch.Generator().manual_seed(1)
    dout = torch.randn(arguments["u"].shape, generator=generator).to(case.dtype)
    dlast = torch.randn(*dout.shape[:3], case.states, generator=generator) if case.options else None
    if interpret:
        first = only_result(FORWARD, "selective_scan_forward", **arguments, want_last_state=True)
        second = only_result(BACKWARD, "selective_scan_backward", dout, dlast, **arguments, states=first[2])
    else:
        first = reference.selective_scan_forward(**arguments, want_last_state=True)
        upstream = dout.double(), None if dlast is None else dlast.double()
        second = reference.selective_scan_backward(*upstream, **arguments, states=None)
    return dict(zip(NAMES, (*first, *second), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_equal_float64(name: str) -> None:
    case = CASES[name]
    arguments = draw(case)
    exact = both_passes(case, doubled(arguments), interpret=False)
    for result, value in both_passes(case, arguments, interpret=True).items():
        wanted = exact[result]
        assert (value is None) == (wanted is None), result
        if value is not None and wanted is not None:
            tolerance = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[case.dtype]
            assert_close(value, wanted, tolerance, f"{result} of {name}")


def test_large_steps_and_decays_stay_finite() -> None:
    case = Case(softplus=False, options=False, length=9)
    arguments = draw(case)
    arguments["delta"] = torch.rand(arguments["delta"].shape) * 50
    arguments["A"] = -torch.rand(arguments["A"].shape) * 100
    exact = both_passes(case, doubled(arguments), interpret=False)
    for result, value in both_passes(case, arguments, interpret=True).items():
        if value is not None:
            assert value.isfinite().all(), result
            assert_close(value, exact[result], 5e-6, result)


def test_one_program_holds_all_states_of_its_channels() -> None:
    case = Case(channels=20, states=16, length=2)
    launches = interpreted(FORWARD, "selective_scan_forward", **draw(case), want_last_state=False)[1]
    # Three tiles of 8 channels by 16 states.
    assert [(made.kernel, made.programs, made.resources.warps) for made in launches] == [("forward_kernel", 3, 1)]


def test_the_public_function_reaches_both_kernels_and_equals_the_native_back_end() -> None:
    case = scan_cases.Case(batch=1, channels=4, states=2, length=9, B="grouped", layout="channel_last")
    found, launches = interpreted("tests.ops.scan_cases", "results_under", "triton", case)
    assert [made.kernel for made in launches] == ["forward_kernel", "backward_kernel"]
    for name, value in scan_cases.results_under("cpu", case).items():
        assert_close(found[name], value, 5e-6, name)
