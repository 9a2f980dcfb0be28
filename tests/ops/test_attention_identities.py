"""Identities of the gradient dynamics, and results that do not depend on the run or the thread count."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from bayesattn_fast.kernels.attention import native, reference
from tests.closeness import assert_close
from tests.ops.attention_cases import DTYPES, Case, case, cases


@pytest.fixture
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def plain_attention(made: Case) -> torch.Tensor:
    """Attention written out, one sequence and one head at a time, for autograd to differentiate."""
    group = made.q.shape[1] // made.k.shape[1]
    heads = []
    for b in range(made.q.shape[0]):
        for h in range(made.q.shape[1]):
            score = made.options["scale"] * made.q[b, h] @ made.k[b, h // group].T
            if made.options["causal"]:
                score = score.masked_fill(torch.ones_like(score, dtype=torch.bool).triu(1), -math.inf)
            heads.append(torch.softmax(score, -1) @ made.v[b, h // group])
    return torch.stack(heads).view(*made.q.shape[:3], -1)


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_equals_autograd_through_attention_written_out(causal: bool) -> None:
    made = case((2, 4, 2, 9, 9, 6, 5), causal=causal).double()
    leaves = [x.requires_grad_() for x in (made.q, made.k, made.v)]
    o = plain_attention(made)
    wanted = torch.autograd.grad(o, leaves, made.u)
    for x in leaves:
        x.requires_grad_(False)
    results = made.results(reference)
    assert_close(results["o"], o, 1e-14, "o")
    for name, exact in zip(("dq", "dk", "dv"), wanted, strict=True):
        assert_close(results[name], exact, 1e-13, name)


def test_reference_statistics_equal_their_definitions_on_dense_matrices() -> None:
    made = case((2, 4, 2, 12, 12, 6, 5), lengths=[12, 7]).double()
    options = {name: x for name, x in made.options.items() if name != "statistics"}
    d = reference.dense(made.q, made.k, made.v, made.u, **options)
    seen = reference.visible(made.q, made.k, True, options["lengths"], None)
    exact = {
        "lse": torch.where(seen, d.score, -math.inf).logsumexp(-1),
        "entropy": -torch.xlogy(d.weight, d.weight).sum(-1),
        "max_weight": d.weight.amax(-1),
        "expected": (d.weight * d.compatibility).sum(-1),
        "variance": (d.weight * d.compatibility**2).sum(-1) - (d.weight * d.compatibility).sum(-1) ** 2,
        "score_norm2": (d.weight * d.advantage).square().sum(-1),
        "responsibility": d.weight.sum(-2),
        "routing": -(d.weight * d.advantage).sum(-2),
        "absolute_routing": (d.weight * d.advantage).abs().sum(-2),
        "value_norm": (d.weight.mT @ made.u).norm(dim=-1),
    }
    results = made.results(reference)
    for name, wanted in exact.items():
        assert_close(results[name], wanted, 1e-12, name)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(torch.float32, longest=150, widest=64))
def test_identities_hold_for_any_shape(made: Case) -> None:
    made.dlse = None
    results = made.results(native)
    live = results["lse"] > -math.inf
    size = results["absolute_routing"].sum(-1) + 1e-6
    # Σ_j R_j = number of live rows
    assert_close(results["responsibility"].sum(-1), live.sum(-1).double(), 1e-6, "Σ R")
    # Σ_j G_j = Σ_i Σ_j ∂L/∂s_ij = 0
    assert bool((results["routing"].sum(-1).abs() <= 2e-6 * size).all())
    # u·o = E_α[b]
    inner = torch.where(live, (made.u * results["o"]).sum(-1), 0)
    assert float((inner - results["expected"]).norm()) <= 2e-6 * float(made.u.norm() * made.v.norm() + 1)
    # |G_j| ≤ Σ_i |∂L/∂s_ij|, and 1/N_k ≤ max α ≤ 1, 0 ≤ H ≤ log N_k
    assert bool((results["routing"].abs() <= results["absolute_routing"] * (1 + 1e-5) + 1e-7).all())
    assert bool(((results["max_weight"] <= 1) & (results["entropy"] <= math.log(made.k.shape[2]) + 1e-5)).all())


@pytest.mark.parametrize("implementation", [native, reference], ids=["native", "reference"])
def test_score_gradients_of_a_row_sum_to_zero(implementation: object) -> None:
    """With k constant along j, dq_i = scale (Σ_j ∂L/∂s_ij) k: any remainder of the row sum would show."""
    made = case((2, 2, 2, 50, 50, 16, 16))
    made.k = made.k[:, :, :1].expand_as(made.k)
    results = made.results(implementation)  # type: ignore[arg-type]
    assert float(results["dq"].abs().max()) < 2e-6 * float(results["absolute_routing"].max())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_two_runs_agree_bit_for_bit(dtype: torch.dtype) -> None:
    made = case((3, 4, 2, 150, 150, 24, 16), dtype)
    first = made.results(native)
    for name, x in made.results(native).items():
        assert torch.equal(x, first[name]), name


@pytest.mark.usefixtures("_restore_threads")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_any_thread_count_gives_the_same_bits(dtype: torch.dtype) -> None:
    made = case((3, 6, 3, 70, 70, 24, 16), dtype)
    torch.set_num_threads(1)
    alone = made.results(native)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        for name, x in made.results(native).items():
            assert torch.equal(x, alone[name]), name
