"""One attention head on a GPU: loss, all gradients and statistics, in one launch for short sequences, two for long.

A short sequence is one program, which takes its rows (rows.py) and then its columns (columns.py). A long one is a
program for each block of rows, then one for each block of columns. Either way the blocks are the same, in the same
order, and so are the bits. The grid is flat: seeds × batch × blocks. The contract is that of reference.py, for float32.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import launch
from .._triton.views import matrices, split, vectors
from .columns import columns_of
from .problem import Extras, Operands, Problem, Results, configure, target_view, uncrowded
from .reference import HeadStep, Statistics, WeightStep
from .rows import rows_of

WHOLE = 4
"""Most blocks of a sequence that one program takes on its own."""


@triton.jit
def sequence(operands, results, extras, e, b, problem, config: tl.constexpr):
    """All rows and then all columns of one sequence, by one program."""
    for first in range(0, problem.length, config.block):
        rows_of(operands, results, extras, e, b, first, problem, config)
    # What the rows left in memory was written by other threads of this program.
    tl.debug_barrier()
    for first in range(0, problem.length, config.block):
        columns_of(operands, results, extras, e, b, first, problem, config)


@triton.jit
def sequence_kernel(operands, results, extras, problem, config: tl.constexpr):
    """One sequence."""
    e, b = split(tl.program_id(0), problem.batch)
    sequence(operands, results, extras, e, b, problem, config)


@triton.jit
def rows_kernel(operands, results, extras, problem, config: tl.constexpr):
    """One block of rows. The last blocks of a causal sequence have the most keys: they go first."""
    blocks = tl.cdiv(problem.length, config.block)
    e, b = split(tl.program_id(0) // blocks, problem.batch)
    first = (blocks - 1 - tl.program_id(0) % blocks) * config.block
    rows_of(operands, results, extras, e, b, first, problem, config)


@triton.jit
def columns_kernel(operands, results, extras, problem, config: tl.constexpr):
    """One block of columns. The first blocks of a causal sequence are seen by the most rows: they go first."""
    blocks = tl.cdiv(problem.length, config.block)
    e, b = split(tl.program_id(0) // blocks, problem.batch)
    columns_of(operands, results, extras, e, b, tl.program_id(0) % blocks * config.block, problem, config)


def allocate(q: Tensor, v: Tensor, w_out: Tensor, block: int) -> dict[str, Tensor]:
    """Memory for the fields of Results, in their order and linear in N."""
    seeds, batch, length, _ = q.shape
    values, classes = w_out.shape[1:]
    new = q.new_empty
    return {
        "dq": new(q.shape),
        "dk": new(q.shape),
        "dv": new(v.shape),
        "dw_out": new(seeds, batch, triton.cdiv(length, block) * values, classes),
        "u": new(v.shape),
        **{name: new(seeds, batch, length) for name in ("lse", "expected", "nll")},
    }


def views(tensors: dict[str, Tensor]) -> Results:
    """The fields of Results as kernel arguments."""
    return Results._make(matrices(t) if t.dim() == 4 else vectors(t) for t in tensors.values())


def attention_cross_entropy(
    q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, causal: bool, scale: float, statistics: bool
) -> HeadStep:
    """The contract of reference.py for float32 on a CUDA device and sizes up to problem.WIDEST."""
    seeds, batch, length, _ = q.shape
    config, resources = configure(q, v, w_out, targets, causal, statistics)
    made = allocate(q, v, w_out, config.block)
    extras = {}
    if statistics:
        whole = ("argmax", "predicted")
        extras = {
            name: q.new_empty(seeds, batch, length, dtype=torch.int64 if name in whole else torch.float32)
            for name in Extras._fields
        }
    arguments = (
        Operands._make([*map(matrices, (q, k, v, w_out[:, None])), target_view(targets)]),
        views(made),
        Extras(**{name: vectors(t) for name, t in extras.items()}) if statistics else None,
        Problem(batch, length, scale, 1.0 / (batch * length)),
    )
    blocks = triton.cdiv(length, config.block)
    kernels = [(rows_kernel, blocks), (columns_kernel, blocks)]
    if blocks <= WHOLE:
        kernels, resources = [(sequence_kernel, 1)], uncrowded(resources)
    for kernel, programs in kernels:
        launch(kernel, seeds * batch * programs, *arguments, config=config, resources=resources, device=q.device)
    found = None
    if statistics:
        found = Statistics(
            **{name: made[name] for name in ("lse", "expected", "nll")},
            **extras,
            value_gradient=made["dv"].norm(dim=-1),
        )
    return HeadStep(
        loss=made["nll"].double().mean((1, 2)).to(q.dtype),
        dq=made["dq"],
        dk=made["dk"],
        dv=made["dv"],
        dw_out=made["dw_out"].unflatten(2, (blocks, -1)).sum((1, 2)),
        statistics=found,
    )


def single_head_step(
    x: Tensor, targets: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_out: Tensor, causal: bool, scale: float
) -> WeightStep:
    """The contract of reference.py; the projections are torch's products around the launch."""
    q, k, v = (x @ w[:, None] for w in (w_q, w_k, w_v))
    step = attention_cross_entropy(q, k, v, w_out, targets, causal, scale, False)
    dw_q, dw_k, dw_v = ((x.mT @ d).sum(1) for d in (step.dq, step.dk, step.dv))
    return WeightStep(step.loss, dw_q, dw_k, dw_v, step.dw_out)
