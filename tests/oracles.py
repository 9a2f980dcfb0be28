"""Answers by brute force, in Python floats: every hypothesis is enumerated, or every integral done numerically."""

import itertools
import math
from collections.abc import Sequence

import numpy as np


def bijection(keys: Sequence[int], values: Sequence[int], symbols: int) -> np.ndarray:
    """p(value at each key | pairs before it), (L, symbols), over all symbols! permutations."""
    permutations = np.array(list(itertools.permutations(range(symbols))))
    rows = []
    for k, key in enumerate(keys):
        agrees = np.all(permutations[:, keys[:k]] == np.array(values[:k], dtype=int), axis=1)
        rows.append(np.bincount(permutations[agrees, key], minlength=symbols) / agrees.sum())
    return np.array(rows)


def recall(stored_keys: Sequence[int], stored_values: Sequence[int], query: int, symbols: int) -> np.ndarray:
    """p(value of `query`) over all injections of keys to values that agree with the store."""
    keys = [*stored_keys] if query in stored_keys else [*stored_keys, query]
    counts = np.zeros(symbols)
    for values in itertools.permutations(range(symbols), len(keys)):
        if list(values[: len(stored_values)]) == list(stored_values):
            counts[values[keys.index(query)]] += 1
    return counts / counts.sum()


def hmm(
    transition: np.ndarray, emission: np.ndarray, initial: np.ndarray, observations: Sequence[int]
) -> tuple[np.ndarray, float]:
    """p(s_t | o_1..o_t) for every t, (T, S), and ln p(o_1..o_T), over all S^T paths; −1 = missing."""
    likelihood = [np.ones(len(initial)) if o < 0 else emission[:, o] for o in observations]
    return paths(transition, np.array(likelihood), initial)


def paths(transition: np.ndarray, likelihood: np.ndarray, initial: np.ndarray) -> tuple[np.ndarray, float]:
    """As `hmm`, for likelihoods (T, S) of the observations in every state."""
    states = len(initial)
    posterior, total = [], 1.0
    for t in range(len(likelihood)):
        mass = np.zeros(states)
        for path in itertools.product(range(states), repeat=t + 1):
            p = initial[path[0]] * likelihood[0, path[0]]
            for i in range(t):
                p *= transition[path[i], path[i + 1]] * likelihood[i + 1, path[i + 1]]
            mass[path[-1]] += p
        total = mass.sum()
        posterior.append(mass / total)
    return np.array(posterior), math.log(total)


def regression(x: np.ndarray, y: np.ndarray, tau: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of y_k given the pairs before it, by inverting the whole precision matrix each time."""
    means, variances = [], []
    for k in range(len(y)):
        past = x[:k]
        covariance = np.linalg.inv(np.eye(x.shape[1]) / tau**2 + past.T @ past / sigma**2)
        means.append(x[k] @ covariance @ past.T @ y[:k] / sigma**2)
        variances.append(sigma**2 + x[k] @ covariance @ x[k])
    return np.array(means), np.array(variances)


def joint_normal_log_evidence(x: np.ndarray, y: np.ndarray, tau: float, sigma: float) -> float:
    """ln N(y; 0, τ² X Xᵀ + σ² I): all observations at once."""
    covariance = tau**2 * x @ x.T + sigma**2 * np.eye(len(y))
    return -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * math.pi * covariance)[1])


def binned_normal(mean: float, variance: float, edges: Sequence[float]) -> np.ndarray:
    """Probability of every bin by adaptive quadrature of the density."""
    from scipy.integrate import quad

    def density(v: float) -> float:
        return math.exp(-0.5 * (v - mean) ** 2 / variance) / math.sqrt(2 * math.pi * variance)

    bounds = [-math.inf, *edges, math.inf]
    return np.array([quad(density, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in itertools.pairwise(bounds)])


def entropy_bits(p: np.ndarray) -> np.ndarray:
    """−Σ p log₂ p over the last axis."""
    return -np.sum(np.where(p > 0, p * np.log2(np.where(p > 0, p, 1)), 0), axis=-1)
