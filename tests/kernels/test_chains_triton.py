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
from bayesattn_fast.kernels.hmm import backward, gaussian
from bayesattn_fast.posteriors import MarkovPredictive, hmm_filter, markov_predictive
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


def gradients(
    matrices: tuple[Tensor, ...], observations: Tensor, lengths: Tensor | None, chosen: tuple[int, ...], name: str
) -> tuple[Tensor, ...]:
    """Of transition, emission and start, through the chosen results of hmm_filter, by one back end."""
    leaves = [x.clone().requires_grad_() for x in matrices]
    with backend(name):
        results = hmm_filter(leaves[0], leaves[1], observations, initial=leaves[2], lengths=lengths, validate=False)
        total = sum((results[i] * torch.linspace(0.5, 2, results[i].numel()).view_as(results[i])).sum() for i in chosen)
        return torch.autograd.grad(total, leaves)


@pytest.mark.parametrize(
    ("batch", "length", "states", "symbols", "shared", "ragged", "chosen"),
    [
        (3, 4, 5, 5, False, False, (2,)),
        (3, 5, 3, 7, True, True, (0, 1, 2, 3)),
        (1, 1, 1, 1, False, False, (0, 1, 2, 3)),
        (2, 3, 6, 9, False, True, (1, 3)),
    ],
)
def test_gradients_of_triton_equal_the_reference(
    batch: int, length: int, states: int, symbols: int, shared: bool, ragged: bool, chosen: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(2)
    lead = () if shared else (batch,)
    shapes = [(*lead, states, states), (*lead, states, symbols), (*lead, states)]
    matrices = tuple(rows(generator, *shape) for shape in shapes)
    observations = torch.randint(-1, symbols, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator) if ragged else None
    found, launches = interpreted(HERE, "gradients", matrices, observations, lengths, chosen, "triton")
    assert [launch.kernel for launch in launches] == ["filter_kernel", "filter_backward_kernel"]
    plain = gradients(matrices, observations, lengths, chosen, "reference")
    exact = gradients(tuple(m.double() for m in matrices), observations, lengths, chosen, "reference")
    for name, f, q, e in zip(("transition", "emission", "initial"), found, plain, exact, strict=True):
        if (f.double() - e).abs().max() > 1e-6 * e.abs().max():
            assert_as_good_as_plain(f, q, e, name)


def test_steps_of_probability_zero_leave_gradients_of_triton_finite() -> None:
    half, never_one = torch.full((2, 2), 0.5), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    matrices = (half, never_one, torch.tensor([0.5, 0.5]))
    observations = torch.tensor([[0, 1, 0]])
    found = only_result(HERE, "gradients", matrices, observations, None, (0,), "triton")
    exact = gradients(tuple(m.double() for m in matrices), observations, None, (0,), "reference")
    for f, e in zip(found, exact, strict=True):
        assert_close(f, e, 1e-6)


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
        for b, states, symbols in ((4096, 5, 5), (64, 5, 5), (64, 32, 32), (64, 16, 256), (64, 64, 64)):
            matrices = meta(b, states, states), meta(b, states, symbols)
            rest = meta(b, 20, dtype=torch.int64), meta(b, states), meta(b, dtype=torch.int64)
            upstream = meta(b, 20, states), meta(b, 20, symbols), meta(b), meta(b, 20)
            backward.hmm_filter_backward(upstream, *matrices, *rest, meta(b, 20, states))
            assert backward.takes(states, symbols)
    assert len(kernels) == 9
    for kernel in kernels:
        usage = gpu.usage(kernel)
        print(f"sm_{capability} {kernel.name} {kernel.config} registers {usage.registers} shared {usage.shared}")
        assert (usage.spills, usage.stack, usage.local, usage.atomics) == (0, 0, 0, 0), kernel.config
