"""The Triton kernels of the causal convolution, run by Triton's interpreter, against the reference in float64."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels.causal_conv1d import reference
from tests.closeness import assert_close
from tests.interpreter import only_result

FORWARD = "bayesattn_fast.kernels.causal_conv1d.forward"
BACKWARD = "bayesattn_fast.kernels.causal_conv1d.backward"


class Case(NamedTuple):
    """Sizes and options of one call."""

    width: int = 4
    length: int = 13
    channels: int = 5
    bias: bool = True
    sequences: bool = False
    initial: bool = False
    silu: bool = True
    channel_last: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "width 4": Case(),
    "width 3, no bias": Case(width=3, bias=False),
    "width 2, no activation": Case(width=2, silu=False),
    "one position": Case(length=1),
    "one position after an initial state": Case(length=1, initial=True),
    "initial states": Case(initial=True),
    "several sequences": Case(sequences=True),
    "several sequences after an initial state": Case(sequences=True, initial=True),
    "several tiles": Case(length=66, channels=17, initial=True, width=2, silu=False),
    "channel-last": Case(channel_last=True),
    "bfloat16": Case(dtype=torch.bfloat16),
}


def draw(case: Case) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    e, b, d, t = 2, 1, case.channels, case.length

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x = normal(e, b, t, d).transpose(2, 3) if case.channel_last else normal(e, b, d, t)
    index = torch.randint(-1, 3, (e, b, t), generator=generator, dtype=torch.int32).sort(-1).values
    return {
        "x": x.to(case.dtype),
        "weight": normal(e, d, case.width),
        "bias": normal(e, d) if case.bias else None,
        "seq_idx": index if case.sequences else None,
        "initial_states": normal(e, b, d, case.width - 1).to(case.dtype) if case.initial else None,
    }


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_equal_float64(name: str) -> None:
    case = CASES[name]
    arguments = draw(case)
    dout = torch.randn(arguments["x"].shape, generator=torch.Generator().manual_seed(1)).to(case.dtype)
    wide = {
        key: value.double() if isinstance(value, Tensor) and key != "seq_idx" else value
        for key, value in arguments.items()
    }
    out = only_result(FORWARD, "causal_conv1d_forward", **arguments, silu=case.silu)
    gradients = only_result(BACKWARD, "causal_conv1d_backward", dout, **arguments, silu=case.silu)
    exact = (
        reference.causal_conv1d_forward(**wide, silu=case.silu),
        *reference.causal_conv1d_backward(dout.double(), **wide, silu=case.silu),
    )
    tolerance = 1e-2 if case.dtype == torch.bfloat16 else 5e-6
    for result, value, wanted in zip(
        ("out", "dx", "dweight", "dbias", "dinitial"), (out, *gradients), exact, strict=True
    ):
        assert (value is None) == (wanted is None), result
        if value is not None:
            assert_close(value, wanted, tolerance, f"{result} of {name}")
