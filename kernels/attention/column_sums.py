"""Sums over the queries of a block of keys, and writing those that are statistics."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton.views import store_vector


class ColumnSums(NamedTuple):
    """Running sums of a block of keys; the last three move only with statistics."""

    dk: Any
    dv: Any
    responsibility: Any
    routing: Any
    absolute_routing: Any


@triton.jit
def store_column_sums(sums, column_sums, batch, head, columns, alive, count):
    """Write one query head's column statistics; 0 for dead keys."""
    responsibility = tl.where(alive, sums.responsibility, 0.0)
    store_vector(column_sums.responsibility, batch, head, columns, count, responsibility)
    store_vector(column_sums.routing, batch, head, columns, count, tl.where(alive, sums.routing, 0.0))
    absolute_routing = tl.where(alive, sums.absolute_routing, 0.0)
    store_vector(column_sums.absolute_routing, batch, head, columns, count, absolute_routing)
    norm = tl.sqrt(tl.sum(sums.dv * sums.dv, 1))
    store_vector(column_sums.value_norm, batch, head, columns, count, tl.where(alive, norm, 0.0))
