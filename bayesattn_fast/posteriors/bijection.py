"""Exact predictive for pairs (x, π(x)) of an unknown bijection."""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesattn_fast.kernels.elimination import native, reference
from bayesattn_fast.posteriors import checks
from bayesattn_fast.posteriors.serving import NATIVE_DTYPES, accepted, by_triton, natively


class BijectionPredictive(NamedTuple):
    """What is known about π(x_k) before it is shown."""

    predictive: Tensor
    """(B, L, V): [y = π(x_k)] where x_k was seen before, else [y unused]/(V − n), n distinct keys seen."""
    entropy: Tensor
    """(B, L): log₂ of the number of values still possible, in bits."""
    log_evidence: Tensor
    """(B,): Σ_k ln p(y_k | pairs before k, x_k) in nats, −inf where pairs contradict each other."""


def bijection_predictive(
    keys: Tensor,
    values: Tensor,
    symbols: int,
    *,
    dtype: torch.dtype = torch.float64,
    allow_impossible: bool = False,
    validate: bool = True,
) -> BijectionPredictive:
    """Predictive of each value given the pairs before it, π uniform over the permutations of `symbols` symbols.

    keys, values (B, L) int64 in [0, symbols): pair k is (keys[:, k], values[:, k]); keys may repeat.
    Raises ValueError naming the first symbol out of range, or the first pair that contradicts an earlier one; with
    allow_impossible=True the latter gives −inf evidence and is otherwise skipped. validate=False checks shapes only.
    arXiv 2512.22471, the elimination task.
    """
    checks.shapes(keys=(keys, "B L"), values=(values, "B L"))
    if natively("elimination", keys) and dtype in NATIVE_DTYPES and keys.dtype == values.dtype == torch.int64:
        *made, status = native.bijection(keys, values, symbols, dtype)
        if accepted(status, validate=validate, allow_impossible=allow_impossible):
            return BijectionPredictive(*made)
    if validate:
        checks.symbols("keys", keys, symbols)
        checks.symbols("values", values, symbols)
    if by_triton("elimination", keys) and dtype in NATIVE_DTYPES:
        from bayesattn_fast.kernels.elimination import forward

        if symbols <= forward.MOST_SYMBOLS:
            found = BijectionPredictive(*forward.bijection(keys, values, symbols, dtype))
            # What is impossible is named by the reference, which looks at every pair.
            if not validate or allow_impossible or not bool(found.log_evidence.isneginf().any()):
                return found
    result = reference.bijection(keys, values, symbols, dtype)
    if validate and not allow_impossible:
        checks.possible("values", result.log_likelihood, values)
    return BijectionPredictive(result.predictive, result.entropy, result.log_likelihood.sum(-1))
