"""Backward attention on a GPU: gradients of q, k and v, and from the same tiles the statistics of the routing.

Short heads take one launch, that of backward_columns.py; longer ones take that of backward_rows.py before it. The
contract of `backward` is that of reference.py.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .._triton.launch import launch
from .._triton.views import Matrices, Vectors, matrices, vectors
from . import tiles
from .backward_columns import Outputs, backward_columns_kernel
from .backward_rows import backward_rows_kernel
from .layout import like_heads
from .problem import Config, Problem, config, problem
from .results import AttentionBackward, ColumnStatistics, RowStatistics


class Inputs(NamedTuple):
    """What a backward kernel reads; dlse is None where the loss does not use lse."""

    q: Matrices
    k: Matrices
    v: Matrices
    o: Matrices
    u: Matrices
    lse: Vectors
    dlse: Vectors | None


class Gradients(NamedTuple):
    """Where dq, dk and dv go."""

    q: Matrices
    k: Matrices
    v: Matrices


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    u: Tensor,
    *,
    dlse: Tensor | None = None,
    causal: bool,
    scale: float,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    statistics: bool,
    tf32: bool = False,
    schedule: tiles.BackwardSchedule | None = None,
) -> AttentionBackward:
    """Gradient of attention and, on request, its row and column statistics; see reference.py for the contract.

    `schedule` forces the tiles instead of taking them from the table. Raises TypeError for a dtype other than float32,
    float16 and bfloat16.
    """
    settings = config(q, v, causal, statistics, tf32)
    if schedule is None:
        schedule = tiles.backward_schedule(q, k, v, tf32=tf32)
    dq, dk, dv = (like_heads(x, x.shape[3]) for x in (q, k, v))
    rows = columns = None
    if statistics:
        rows = RowStatistics(*(lse.new_empty(q.shape[:3]) for _ in RowStatistics._fields))
        columns = ColumnStatistics(*(lse.new_empty(*q.shape[:2], k.shape[2]) for _ in ColumnStatistics._fields))
    targets = Gradients(matrices(dq), matrices(dk), matrices(dv))
    call = _Call(
        Inputs._make([*map(matrices, (q, k, v, o, u)), vectors(lse), None if dlse is None else vectors(dlse)]),
        problem(q, k, scale, lengths, query_lengths),
        settings,
        q.device,
    )
    row_sums = rows and RowStatistics._make(map(vectors, rows))
    column_sums = columns and ColumnStatistics._make(map(vectors, columns))
    b, h, n_q, _ = q.shape
    h_kv, n_k = k.shape[1:3]
    if schedule.rows is None:
        outputs = Outputs(targets, row_sums, column_sums, None)
        call.launch(backward_columns_kernel, b * h_kv, schedule.columns, outputs)
    else:
        delta = vectors(lse.new_empty(b, h, n_q))
        programs = b * h * triton.cdiv(n_q, schedule.rows.block_m)
        call.launch(backward_rows_kernel, programs, schedule.rows, targets, delta, row_sums)
        programs = b * h_kv * triton.cdiv(n_k, schedule.columns.block_n)
        call.launch(backward_columns_kernel, programs, schedule.columns, Outputs(targets, None, column_sums, delta))
    return AttentionBackward(dq, dk, dv, rows, columns)


class _Call(NamedTuple):
    """What all kernels of one backward pass are given."""

    inputs: Inputs
    problem: Problem
    config: Config
    device: torch.device

    def launch(self, kernel: Any, programs: int, schedule: tiles.Schedule, *outputs: Any) -> None:
        launch(
            kernel,
            programs,
            self.inputs,
            *outputs,
            self.problem,
            config=tiles.apply(self.config, schedule, self.problem.queries, self.problem.keys),
            resources=schedule.resources,
            device=self.device,
        )
