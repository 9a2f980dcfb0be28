"""The Triton kernels of exact posteriors: equal to the references in the interpreter, without spills when compiled."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.hmm import forward as hmm
from bayesattn_fast.kernels.score import forward as scores
from bayesattn_fast.kernels.score import reference
from bayesattn_fast.ops.hmm import plain_filter
from tests.closeness import assert_as_good_as_plain
from tests.interpreter import only_result

HMM, SCORE = "bayesattn_fast.kernels.hmm.forward", "bayesattn_fast.kernels.score.forward"


def rows(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).softmax(-1)


@pytest.mark.parametrize(
    ("batch", "length", "states", "symbols", "shared", "ragged"),
    [(3, 5, 5, 5, False, False), (20, 3, 3, 7, True, True), (1, 1, 1, 1, False, False), (2, 4, 17, 33, False, True)],
)
def test_hmm_filter_of_triton_equals_the_reference(
    batch: int, length: int, states: int, symbols: int, shared: bool, ragged: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    lead = () if shared else (batch,)
    matrices = rows(generator, *lead, states, states), rows(generator, *lead, states, symbols)
    initial = rows(generator, *lead, states)
    observations = torch.randint(-1, symbols, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator) if ragged else None
    found = only_result(HMM, "hmm_filter", *matrices, observations, initial, lengths)
    plain = plain_filter(*matrices, observations, initial, lengths)
    exact = plain_filter(*(m.double() for m in matrices), observations, initial.double(), lengths)
    for name, f, q, e in zip(found._fields, found, plain, exact, strict=False):
        if (f.double() - e).abs().max() > 1e-6:
            assert_as_good_as_plain(f, q, e, name)


def test_impossible_observations_cost_triton_minus_infinity_and_are_passed_over() -> None:
    half, never_one = torch.full((2, 2), 0.5), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    found = only_result(HMM, "hmm_filter", half, never_one, torch.tensor([[0, 1, 0]]), torch.tensor([0.5, 0.5]))
    assert found.log_evidence.item() == float("-inf")
    assert torch.equal(found.posterior, torch.full((1, 3, 2), 0.5))


@pytest.mark.parametrize(("count", "classes"), [(5, 20), (1, 1), (130, 7), (2, 300)])
def test_scores_of_triton_equal_the_reference(count: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits, p = 4 * torch.randn(count, classes, generator=generator), rows(generator, count, classes)
    p[:, 1::3] = 0
    p /= p.sum(-1, keepdim=True)
    logits[0, 1::2] = float("-inf")
    p[0, 1::2] = 0
    targets = torch.randint(0, classes, (count,), generator=generator)
    targets[0] = 0
    found = only_result(SCORE, "score", logits, p, targets)
    plain = reference.score(logits, p, targets)
    exact = reference.score(logits.double(), p.double(), targets)
    for name, f, q, e in zip(found._fields, found, plain, exact, strict=True):
        if (f.double() - e).abs().max() > 1e-6:
            assert_as_good_as_plain(f, q, e, name)


def test_rows_without_a_softmax_score_nan_in_triton() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[nan, 0.0, 0.0], [-inf, -inf, -inf], [0.0, 0.0, 0.0]])
    found = only_result(SCORE, "score", logits, torch.full((3, 3), 1 / 3), torch.zeros(3, dtype=torch.int64))
    for field in found:
        assert field.isnan().tolist() == [True, True, False]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"))


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_posterior_kernels_compile_without_spills_or_float_atomics(capability: int) -> None:
    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    integers = {"dtype": torch.int64}
    with gpu.compile_only(capability) as kernels:
        for b, states, symbols in ((4096, 5, 5), (64, 5, 5), (64, 32, 64), (64, 64, 128), (64, 8, 1024)):
            matrices = meta(b, states, states), meta(b, states, symbols)
            hmm.hmm_filter(*matrices, meta(b, 20, **integers), meta(b, states), meta(b, **integers))
            assert hmm.takes(states, symbols)
        for classes in (5, 20, 256):
            scores.score(meta(640, classes), meta(640, classes), meta(640, **integers))
    assert len(kernels) == 8
    for kernel in kernels:
        usage = gpu.usage(kernel)
        print(f"sm_{capability} {kernel.name} {kernel.config} registers {usage.registers} shared {usage.shared}")
        assert (usage.spills, usage.stack, usage.local, usage.atomics) == (0, 0, 0, 0), kernel.config


def public_filter(*inputs: Tensor, **options: object) -> Tensor:
    """posteriors.hmm_filter by the Triton back end, for the interpreter's process."""
    from bayesattn_fast.backends import backend
    from bayesattn_fast.posteriors import hmm_filter

    with backend("triton"):
        return hmm_filter(*inputs, **options).posterior  # type: ignore[arg-type]


def test_the_public_filter_runs_on_triton_and_names_what_it_refuses() -> None:
    half, never_one = torch.full((2, 2), 0.5), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    here = "tests.kernels.test_posterior_triton"
    observations = torch.tensor([[0, 0, 0], [0, 1, 0]])
    found = only_result(here, "public_filter", half, half, observations)
    assert torch.equal(found, torch.full((2, 3, 2), 0.5))
    with pytest.raises(ValueError, match=r"observations must have positive probability .*sequence 1, position 1"):
        only_result(here, "public_filter", half, never_one, observations)
    with pytest.raises(ValueError, match="rows of emission must sum to 1"):
        only_result(here, "public_filter", half, half * 0.9, observations)
