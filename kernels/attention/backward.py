"""Backward attention on a GPU: gradients of q, k and v, and from the same tiles the statistics of the routing.

Short heads take backward_whole.py, one launch; longer ones backward_tiled.py, two. The contract of `backward` is that
of reference.py.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .._triton.launch import launch
from .._triton.views import Matrices, Vectors, matrices, vectors
from . import tiles
from .backward_tiled import backward_columns_kernel, backward_rows_kernel
from .backward_whole import backward_whole_kernel
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
    gradients = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    rows = columns = None
    if statistics:
        rows = RowStatistics(*(lse.new_empty(q.shape[:3]) for _ in RowStatistics._fields))
        columns = ColumnStatistics(*(lse.new_empty(*q.shape[:2], k.shape[2]) for _ in ColumnStatistics._fields))
    call = _Call(
        Inputs(*map(matrices, (q, k, v, o, u)), vectors(lse), vectors(dlse)),
        Gradients(*map(matrices, gradients)),
        problem(q, k, scale, lengths, query_lengths),
        settings,
        q.device,
    )
    row_views = rows and RowStatistics(*map(vectors, rows))
    column_views = columns and ColumnStatistics(*map(vectors, columns))
    b, h, n_q, _ = q.shape
    h_kv, n_k = k.shape[1:3]
    if schedule.whole is not None:
        call.launch(backward_whole_kernel, b * h_kv, schedule.whole, row_views, column_views)
    else:
        delta = vectors(lse.new_empty(b, h, n_q))
        by_rows, by_columns = schedule.rows, schedule.columns
        call.launch(backward_rows_kernel, b * h * triton.cdiv(n_q, by_rows.block_m), by_rows, delta, row_views)
        programs = b * h_kv * triton.cdiv(n_k, by_columns.block_n)
        call.launch(backward_columns_kernel, programs, by_columns, delta, column_views)
    return AttentionBackward(*gradients, rows, columns)


class _Call(NamedTuple):
    """What all kernels of one backward pass are given."""

    inputs: Inputs
    gradients: Gradients
    problem: Problem
    config: Config
    device: torch.device

    def launch(self, kernel: Any, programs: int, schedule: tiles.Schedule, *outputs: Any) -> None:
        launch(
            kernel,
            programs,
            self.inputs,
            self.gradients,
            *outputs,
            self.problem,
            config=tiles.apply(self.config, schedule),
            warps=schedule.warps,
            stages=schedule.stages,
            device=self.device,
        )
