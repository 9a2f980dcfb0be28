"""Posterior predictives where evidence only rules values out.

Bijection: π is a uniform permutation of V symbols and pairs (x_i, y_i = π(x_i)) have been seen. Then
    p(π(x) = y | pairs) = [y = π(x)]                    where x was seen,
                          [y unused] / (V − n)          otherwise, n distinct keys seen.
Associative recall: N distinct keys are bound to N distinct values. A query asks for the bound value or, where its key
was never stored, for a value drawn uniformly from those not stored:
    p(y | store, query) = [y = value of the key]  or  [y not stored] / (V − N).
"The Bayesian Geometry of Transformer Attention" (arXiv 2512.22471): the elimination and binding tasks.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Elimination(NamedTuple):
    """predictive (R, L, V); entropy (R, L) in bits; log_likelihood (R, L) = ln predictive[…, answer], in nats."""

    predictive: Tensor
    entropy: Tensor
    log_likelihood: Tensor


def bijection(keys: Tensor, values: Tensor, symbols: int, dtype: torch.dtype = torch.float64) -> Elimination:
    """Predictive of values[:, k] at keys[:, k] given the pairs before it; keys may repeat.

    keys, values (R, L) int64 in [0, symbols). A pair that contradicts an earlier one has likelihood 0 and is not
    learnt from.
    """
    rows, length = keys.shape
    value_of = keys.new_full((rows, symbols), -1)
    unused = torch.ones(rows, symbols, dtype=torch.bool, device=keys.device)
    alphabet = torch.arange(symbols, device=keys.device)
    predictive = torch.zeros(rows, length, symbols, dtype=dtype, device=keys.device)
    free = torch.full((rows, length), 1, device=keys.device)  # number of values still possible
    for k in range(length):
        key, value = keys[:, k : k + 1], values[:, k : k + 1]
        known = value_of.gather(1, key)
        possible = torch.where(known >= 0, alphabet == known, unused)
        free[:, k] = possible.sum(1)
        predictive[:, k] = possible / free[:, k : k + 1].to(dtype)
        consistent = possible.gather(1, value)
        value_of.scatter_(1, key, torch.where(consistent, value, known))
        unused.scatter_(1, value, unused.gather(1, value) & ~consistent)
    log_likelihood = predictive.gather(2, values[..., None]).squeeze(2).log()
    return Elimination(predictive, free.to(dtype).log2(), log_likelihood)


def recall(
    stored_keys: Tensor, stored_values: Tensor, queries: Tensor, values: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Predictive (R, M, values) of the answers to queries (R, M).

    stored_keys, stored_values (R, N) int64, each distinct within a row; values is the size of the answer alphabet.
    """
    match = queries[:, :, None] == stored_keys[:, None, :]
    free = torch.ones(len(queries), values, dtype=torch.bool, device=queries.device).scatter_(1, stored_values, False)
    bound = torch.zeros(*queries.shape, values, dtype=torch.bool, device=queries.device)
    bound.scatter_(2, stored_values[:, None, :].expand_as(match), match)
    possible = torch.where(match.any(2, keepdim=True), bound, free[:, None, :])
    return possible / possible.sum(2, keepdim=True).to(dtype)
