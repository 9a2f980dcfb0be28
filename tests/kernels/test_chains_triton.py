"""Triton kernels of chains beyond the discrete filter: Gaussian observations, gradients; interpreted and compiled."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.hmm import gaussian
from bayesattn_fast.posteriors import MarkovPredictive, markov_predictive
from tests.closeness import assert_as_good_as_plain, assert_close
from tests.interpreter import interpreted, only_result

HERE = "tests.kernels.test_chains_triton"


def rows(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).softmax(-1)


def public_markov(*inputs: Tensor, **options: float) -> MarkovPredictive:
    """posteriors.markov_predictive by the Triton back end, for the interpreter's process."""
    with backend("triton"):
        return markov_predictive(*inputs, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "length", "states", "dimensions", "shared", "noise"),
    [(3, 4, 8, 20, True, 1.0), (2, 3, 5, 3, False, 0.05), (1, 1, 1, 1, True, 1.0), (5, 2, 3, 40, False, 2.0)],
)
def test_gaussian_filter_of_triton_equals_the_reference(
    batch: int, length: int, states: int, dimensions: int, shared: bool, noise: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    lead = () if shared else (batch,)
    means = torch.randn(states, dimensions, generator=generator)
    inputs = torch.randn(batch, length, dimensions, generator=generator)
    transition, initial = rows(generator, *lead, states, states), rows(generator, *lead, states)
    found, launches = interpreted_markov(inputs, means, transition, initial, noise)
    assert launches == ["gaussian_filter_kernel"]
    with backend("reference"):
        plain, exact = (
            markov_predictive(*(x.to(d) for x in (inputs, means, transition)), noise=noise, initial=initial.to(d))
            for d in (torch.float32, torch.float64)
        )
    for name, f, q, e in zip(found._fields, found, plain, exact, strict=True):
        if (f.double() - e).abs().max() > 1e-6:
            assert_as_good_as_plain(f, q, e, name)


def interpreted_markov(
    inputs: Tensor, means: Tensor, transition: Tensor, initial: Tensor, noise: float
) -> tuple[MarkovPredictive, list[str]]:
    made, launches = interpreted(HERE, "public_markov", inputs, means, transition, noise=noise, initial=initial)
    return made, [launch.kernel for launch in launches]


def test_a_far_input_is_not_impossible_and_states_out_of_reach_stay_out() -> None:
    inputs, means = torch.full((1, 2, 1), 1e4), torch.tensor([[0.0], [1.0], [1e4]])
    stay, initial = torch.eye(3), torch.tensor([0.5, 0.5, 0.0])
    found = only_result(HERE, "public_markov", inputs, means, stay, initial=initial)
    # Of the two states that the chain can be in, the nearer one by a likelihood ratio of e^9999.5.
    assert torch.equal(found.posterior, torch.tensor([[[0.0, 1.0, 0.0]] * 2]))
    assert_close(found.log_evidence, torch.tensor([-(9999.0**2) - 2.5310242469692907], dtype=torch.float64), 1e-7)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_chains_compile_without_spills_or_float_atomics(capability: int) -> None:
    with gpu.compile_only(capability) as kernels:
        for batch, states, d in ((64, 8, 20), (4096, 8, 20), (64, 32, 64), (1, gaussian.MOST_STATES, 100)):
            gaussian.gaussian_filter(
                meta(batch, 2000, d), meta(states, d), meta(states, states), meta(batch, states), 1.0
            )
    assert len(kernels) == 4
    for kernel in kernels:
        usage = gpu.usage(kernel)
        print(f"sm_{capability} {kernel.name} {kernel.config} registers {usage.registers} shared {usage.shared}")
        assert (usage.spills, usage.stack, usage.local, usage.atomics) == (0, 0, 0, 0), kernel.config
