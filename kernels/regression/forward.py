"""Bayesian linear regression on a GPU: Bierman's update and the bins of the predictive, a few sequences per program.

Everything is float64 inside, as in native.cpp: a small noise beside a large prior leaves float32 no digits. Σ is kept
as U diag(spread) Uᵀ with U unit upper triangular (its part above the diagonal is stored); the update goes through the
columns of U one by one.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources, launch, rows_per_program

# Entries of the factors, or bins, of the sequences of one program.
TILE = 512
MOST_DIMENSIONS, MOST_CLASSES = 32, 1024

# f of Shepherd and Laframboise (1981): erfc x = e^(−x²) f(t)/(1 + 2x), t = (x − 5/2)/(x + 5/2), highest power first.
ERFC = tl.constexpr(
    (
        *(1.08022678688848933e-8, -1.78541054333108481e-10, -1.03842205375185051e-7, -5.12102640066322966e-8),
        *(5.02141704119834545e-7, 6.34739971660338202e-7, -1.55736984655793491e-6, -4.3073058970104437e-6),
        *(2.59286649771896102e-6, 2.27490658222663165e-5, 6.27206228153371769e-6, -0.000113540508856245735),
        *(-8.84806964111983943e-5, 0.000632128659057943948, 0.00049186602854652627, -0.00438207897293871125),
        *(0.000931892799563063076, 0.0327608933205079606, -0.102967056037892992, 0.157629919021244807),
        *(-0.099024539573609547, -0.122356763082381968, 1.26483818436686148),
    )
)


class Config(NamedTuple):
    """block_b sequences, block_d ≥ d weights, block_c ≥ C bins."""

    block_b: int
    block_d: int
    block_c: int


class Problem(NamedTuple):
    """x (R, L, d), y (R, L), float32; parameters: the C − 1 inner edges, then τ² and σ², float64."""

    x: Tensor
    y: Tensor
    parameters: Tensor
    rows: int
    length: int
    dimensions: int
    classes: int


class Results(NamedTuple):
    """mean, variance (R, L), predictive (R, L, C), entropy (R, L) in bits, log_evidence (R,) in nats, float32."""

    mean: Tensor
    variance: Tensor
    predictive: Tensor
    entropy: Tensor
    log_evidence: Tensor


@triton.jit
def half_erfc(x):
    """½ erfc x in float64, for any x."""
    z = tl.minimum(tl.abs(x), 28.0)
    t = (z - 2.5) / (z + 2.5)
    f = t * 0.0
    for i in tl.static_range(23):
        f = f * t + ERFC[i]
    squared = z * z
    # What rounding z² lost, to first order.
    upper = tl.exp(-squared) * (1.0 - tl.fma(z, z, -squared)) * f * 0.5 / (1.0 + 2.0 * z)
    return tl.where(x < 0, 1.0 - upper, upper)


@triton.jit
def binned_normal(mean, variance, low, high):
    """Mass between the edges low and high (C,) under N(mean, variance) (B,): as reference.binned_normal."""
    scale = 1.0 / tl.sqrt(2.0 * variance)
    a, b = (low[None, :] - mean[:, None]) * scale[:, None], (high[None, :] - mean[:, None]) * scale[:, None]
    right = a > -b
    return tl.maximum(half_erfc(tl.where(right, a, -b)) - half_erfc(tl.where(right, b, -a)), 0.0)


@triton.jit
def learn(residual, seen, noise, weights, spread, u, d, config: tl.constexpr):
    """Bierman's update by a pair: residual (B,) = y − mean, seen (B, D) = Uᵀx. Returns weights, spread and u."""
    i = tl.arange(0, config.block_d)
    moved = spread * seen
    gain, total = moved * 0.0, residual * 0.0 + noise
    for j in range(d):
        own = (i == j)[None, :]
        seen_j, moved_j = tl.sum(tl.where(own, seen, 0.0), 1), tl.sum(tl.where(own, moved, 0.0), 1)
        before, total = total, total + seen_j * moved_j
        spread = tl.where(own, spread * (before / total)[:, None], spread)
        column = tl.sum(tl.where(own[:, None, :], u, 0.0), 2)
        u = tl.where(own[:, None, :], u - (gain * (seen_j / before)[:, None])[:, :, None], u)
        gain += tl.where(own, 1.0, column) * moved_j[:, None]
    return weights + gain * (residual / total)[:, None], spread, u


@triton.jit
def regression_kernel(problem, results, config: tl.constexpr):
    L, D, C = problem.length, problem.dimensions, problem.classes
    row = tl.program_id(0).to(tl.int64) * config.block_b + tl.arange(0, config.block_b)
    i, c = tl.arange(0, config.block_d), tl.arange(0, config.block_c)
    live = row < problem.rows
    within, shown = live[:, None] & (i < D)[None, :], live[:, None] & (c < C)[None, :]
    low = tl.load(problem.parameters + c - 1, (c > 0) & (c < C), other=float("-inf"))
    high = tl.load(problem.parameters + c, c < C - 1, other=float("inf"))
    prior, noise = tl.load(problem.parameters + C - 1), tl.load(problem.parameters + C)
    weights = tl.where(within, 0.0, 0.0).to(tl.float64)
    spread = weights + prior
    u = weights[:, :, None] * tl.where(i < D, 1.0, 1.0)[None, None, :].to(tl.float64)
    evidence = tl.sum(weights, 1)
    for k in range(L):
        at = row * L + k
        x = tl.load(problem.x + at[:, None] * D + i[None, :], within, other=0.0).to(tl.float64)
        y = tl.load(problem.y + at, live, other=0.0).to(tl.float64)
        mean = tl.sum(weights * x, 1)
        seen = x + tl.sum(u * x[:, :, None], 1)
        variance = noise + tl.sum(seen * spread * seen, 1)
        p = binned_normal(mean, variance, low, high)
        bits = -tl.sum(tl.where(shown & (p > 0), p * tl.log2(tl.where(p > 0, p, 1.0)), 0.0), 1)
        evidence -= 0.5 * ((y - mean) * (y - mean) / variance + tl.log(6.283185307179586 * variance))
        weights, spread, u = learn(y - mean, seen, noise, weights, spread, u, D, config)
        tl.store(results.mean + at, mean.to(tl.float32), live)
        tl.store(results.variance + at, variance.to(tl.float32), live)
        tl.store(results.predictive + at[:, None] * C + c[None, :], p.to(tl.float32), shown)
        tl.store(results.entropy + at, tl.maximum(bits, 0.0).to(tl.float32), live)
    tl.store(results.log_evidence + row, evidence.to(tl.float32), live)


@functools.lru_cache(maxsize=64)
def _parameters(edges: tuple[float, ...], tau: float, sigma: float, device: torch.device) -> Tensor:
    # A float argument of a kernel would arrive in float32.
    return torch.tensor([*edges, tau**2, sigma**2], dtype=torch.float64, device=device)


def takes(dimensions: int, classes: int) -> bool:
    """True where the factors and the bins of a sequence fit the registers of a program."""
    return dimensions <= MOST_DIMENSIONS and classes <= MOST_CLASSES


def regression(x: Tensor, y: Tensor, tau: float, sigma: float, edges: Sequence[float]) -> Results:
    """Results for float32 x (R, L, d) and y (R, L); edges: the C − 1 inner edges of the bins, C ≥ 2."""
    (rows, length, d), classes = x.shape, len(edges) + 1
    block_d, block_c = triton.next_power_of_2(d), triton.next_power_of_2(classes)
    one = max(block_d * block_d, block_c)
    block_b = rows_per_program(rows, TILE // one)
    new = x.new_empty
    mean, variance, entropy = new(rows, length), new(rows, length), new(rows, length)
    made = Results(mean, variance, new(rows, length, classes), entropy, new(rows))
    parameters = _parameters(tuple(edges), tau, sigma, x.device)
    problem = Problem(x.contiguous(), y.contiguous(), parameters, rows, length, d, classes)
    launch(
        *(regression_kernel, triton.cdiv(rows, block_b), problem, made),
        config=Config(block_b, block_d, block_c),
        resources=Resources(1 if block_b * one <= TILE // 4 else 4 if one <= TILE else 8, 1, 255),
        device=x.device,
    )
    return made
