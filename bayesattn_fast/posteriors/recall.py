"""Exact predictive of associative recall: pairs were stored, a key is asked for."""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesattn_fast.kernels.elimination import native, reference
from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.posteriors import checks
from bayesattn_fast.posteriors.serving import NATIVE_DTYPES, accepted, by_triton, natively


class RecallPredictive(NamedTuple):
    """What the store says about each query."""

    predictive: Tensor
    """(B, M, V): [y = stored value of the key], or [y not stored]/(V − N) for a key that was never stored."""
    entropy: Tensor
    """(B, M): 0 for a stored key, log₂(V − N) otherwise, in bits."""


def recall_predictive(
    stored_keys: Tensor,
    stored_values: Tensor,
    queries: Tensor,
    values: int,
    *,
    dtype: torch.dtype = torch.float64,
    validate: bool = True,
) -> RecallPredictive:
    """Predictive of the answer to each query, in an alphabet of `values` values.

    stored_keys, stored_values (B, N) int64, distinct within a sequence, values in [0, values); queries (B, M) int64.
    Raises ValueError naming the first value out of range or stored twice, or the first query that has no answer: a
    key never stored while every value is. validate=False checks shapes only.
    arXiv 2512.22471, the binding task; keys that were never stored are an extension.
    """
    checks.shapes(stored_keys=(stored_keys, "B N"), stored_values=(stored_values, "B N"), queries=(queries, "B M"))
    integers = all(x.dtype == torch.int64 for x in (stored_keys, stored_values, queries))
    if natively("elimination", queries) and dtype in NATIVE_DTYPES and integers:
        *made, status = native.recall(stored_keys, stored_values, queries, values, dtype, validate)
        if accepted(status, validate=validate):
            return RecallPredictive(*made)
    if validate:
        checks.symbols("stored_values", stored_values, values)
        checks.distinct("stored_keys", stored_keys)
        checks.distinct("stored_values", stored_values)
        if stored_values.shape[1] == values:
            never_stored = ~(queries[:, :, None] == stored_keys[:, None, :]).any(-1)
            checks.refuse(never_stored, "queries must be stored keys where every value is stored", queries)
    if by_triton("elimination", queries) and dtype in NATIVE_DTYPES:
        from bayesattn_fast.kernels.elimination import forward

        if values <= forward.MOST_SYMBOLS:
            return RecallPredictive(*forward.recall(stored_keys, stored_values, queries, values, dtype))
    predictive = reference.recall(stored_keys, stored_values, queries, values, dtype)
    return RecallPredictive(predictive, entropy_bits(predictive))
