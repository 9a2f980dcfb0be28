"""The selective scan and the short convolution on a GPU: against float64, bit for bit repeatable, for any layout."""

import pytest
import torch
from torch import Tensor

from bayesattn_fast.ops.causal_conv1d import causal_conv1d_fn
from bayesattn_fast.ops.selective_scan import selective_scan_fn
from tests.closeness import assert_close
from tests.ops.scan_cases import LAYOUTS, Case, draw_tensors, in_float64, results

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES = [
    Case(),
    Case(channels=1, states=1, length=1),
    Case(batch=5, channels=70, states=16, length=40),
    Case(channels=33, states=7, length=129, B="grouped", C="fixed", groups=3),
    Case(channels=20, states=64, length=65, B="fixed", C="fixed", options=()),
    Case(batch=1, channels=6, states=256, length=9),
    Case(batch=3, channels=48, states=16, length=601, softplus=False),
]
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def on_gpu(case: Case) -> dict[str, Tensor]:
    """Both passes on the device, brought back; a layout of stride 0 or with gaps survives the way there."""
    tensors = {name: moved(t) for name, t in draw_tensors(case).items()}
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    out, last = selective_scan_fn(**leaves, delta_softplus=case.softplus, return_last_state=True)
    generator = torch.Generator().manual_seed(case.seed + 1)
    upstream = [torch.randn(t.shape, generator=generator).to(case.dtype).to(t.dtype).cuda() for t in (out, last)]
    gradients = torch.autograd.grad([out, last], list(leaves.values()), upstream)
    found = {"out": out, "last_state": last, **{f"d{n}": g for n, g in zip(leaves, gradients, strict=True)}}
    return {name: t.detach().cpu() for name, t in found.items()}


def moved(tensor: Tensor) -> Tensor:
    """The view on the device, strides and all."""
    storage = tensor.detach().untyped_storage()
    flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (storage.nbytes() // tensor.element_size(),))
    return flat.cuda().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_equal_float64(case: Case, dtype: torch.dtype) -> None:
    case = Case(**{**case.__dict__, "dtype": dtype})
    exact = results(case, in_float64(draw_tensors(case)))
    for name, value in on_gpu(case).items():
        assert_close(value, exact[name], TOLERANCE[dtype], f"{name} of {case}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_same_result(layout: str) -> None:
    case = Case(channels=18, length=70, layout=layout)
    exact = results(case, in_float64(draw_tensors(case)))
    for name, value in on_gpu(case).items():
        assert_close(value, exact[name], 5e-6, name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_runs_give_the_same_bits(case: Case) -> None:
    first, second = on_gpu(case), on_gpu(case)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_more_than_65535_sequences_fit_one_launch() -> None:
    case = Case(batch=70_000, channels=2, states=2, length=2, options=())
    exact = results(case, in_float64(draw_tensors(case)))
    for name, value in on_gpu(case).items():
        assert_close(value, exact[name], 2e-5, name)


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("length", [1, 13, 200])
def test_convolution_equals_float64(length: int, initial: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, length, 20).transpose(1, 2)
    weight, bias, past = torch.randn(20, 4), torch.randn(20), torch.randn(3, 20, 3) if initial else None
    dout = torch.randn_like(x)

    def run(device: str, dtype: torch.dtype) -> list[Tensor]:
        given = [None if t is None else t.to(device, dtype).requires_grad_() for t in (x, weight, bias, past)]
        out = causal_conv1d_fn(given[0], given[1], given[2], initial_states=given[3], activation="silu")
        assert isinstance(out, Tensor)
        leaves = [t for t in given if t is not None]
        return [out, *torch.autograd.grad(out, leaves, dout.to(device, dtype))]

    for value, exact in zip(run("cuda", torch.float32), run("cpu", torch.float64), strict=True):
        assert_close(value.cpu(), exact, 5e-6)
