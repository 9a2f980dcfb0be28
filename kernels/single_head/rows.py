"""A block of queries of one sequence: its share of the loss, what the columns need of it, and dq.

    o_i = Σ_j α_ij v_j     z_i = W_Oᵀ o_i     p_i = softmax(z_i)     u_i = W_O (p_i Σ_c y_ic − y_i) / (B·N)
    E_i = u_i·o_i          ∂L/∂s_ij = α_ij (u_i·v_j − E_i)           dq_i = scale Σ_j ∂L/∂s_ij k_j

Two walks over the keys, since u needs the whole of o: the first with an online softmax, the second with the weights
recovered from lse. Var_i = Σ_j α_ij (b_ij − E_i)² is summed about E, which is known by then, so nothing cancels.
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .._triton import softmax
from .._triton.views import load_tile, store_tile, store_vector
from .problem import product, scaled_queries


class Prediction(NamedTuple):
    """What the readout makes of a block of outputs: ∂L/∂z, u, and per row nll, entropy and likeliest class."""

    dz: Any
    u: Any
    nll: Any
    entropy: Any
    predicted: Any


class QuerySums(NamedTuple):
    """Running sums of the second walk; the last two move only with statistics."""

    dq: Any
    variance: Any
    score_gradient: Any


@triton.jit
def rows_of(operands, results, extras, e, b, first, problem, config: tl.constexpr):
    """Everything of the block of rows that starts at `first`, written to `results` and `extras`."""
    rows = first + tl.arange(0, config.block)
    alive = rows < problem.length
    q = scaled_queries(operands, e, b, rows, problem, config)
    end = problem.length
    if config.causal:
        end = tl.minimum(end, first + config.block)
    state, o = attend(operands, e, b, q, rows, end, problem, config)
    lse = softmax.log_sum_exp(state, ~alive, True)
    found = read_out(operands, e, b, o, rows, alive, problem, config)
    expected = tl.sum(found.u * o, 1)
    store_tile(results.u, e, b, rows, problem.length, found.u, config.values, config.block_v)
    store_vector(results.lse, e, b, rows, problem.length, lse)
    store_vector(results.expected, e, b, rows, problem.length, expected)
    store_vector(results.nll, e, b, rows, problem.length, found.nll)
    share = first // config.block * config.values + tl.arange(0, config.block_v)
    below = (first // config.block + 1) * config.values
    dw_out = product(tl.trans(o), found.dz)
    store_tile(results.dw_out, e, b, share, below, dw_out, config.classes, config.block_c)
    sums = descend_scores(operands, e, b, q, found.u, lse, expected, rows, end, problem, config)
    store_tile(results.dq, e, b, rows, problem.length, sums.dq * problem.scale, config.head, config.block_d)
    if config.statistics:
        store_vector(extras.entropy, e, b, rows, problem.length, softmax.entropy(state, ~alive, True))
        store_vector(extras.variance, e, b, rows, problem.length, sums.variance)
        store_vector(extras.score_gradient, e, b, rows, problem.length, sums.score_gradient)
        store_vector(extras.largest, e, b, rows, problem.length, 1.0 / (1.0 + state.rest))
        store_vector(extras.predictive_entropy, e, b, rows, problem.length, found.entropy)
        store_vector(extras.argmax, e, b, rows, problem.length, state.argmax)
        store_vector(extras.predicted, e, b, rows, problem.length, found.predicted)


@triton.jit
def visible(rows, columns, length, config: tl.constexpr):
    """Which key each row may see, for numbers that broadcast."""
    seen = columns < length
    if config.causal:
        seen = seen & (rows >= columns)
    return seen


@triton.jit
def attend(operands, e, b, q, rows, end, problem, config: tl.constexpr):
    """The first walk: the state of the softmax and o."""
    state = softmax.start(config.block)
    mixed = tl.full([config.block, config.block_v], 0.0, tl.float32)
    for start in range(0, end, config.block):
        columns = start + tl.arange(0, config.block)
        k = load_tile(operands.k, e, b, columns, problem.length, config.head, config.block_d)
        v = load_tile(operands.v, e, b, columns, problem.length, config.values, config.block_v)
        seen = visible(rows[:, None], columns[None, :], problem.length, config)
        score = tl.where(seen, product(q, tl.trans(k)), float("-inf"))
        state, weights, decay = softmax.update(state, score, columns, True, config.statistics)
        mixed = mixed * decay[:, None] + product(weights, v)
    return state, mixed * (1.0 / state.total)[:, None]


@triton.jit
def read_out(operands, e, b, o, rows, alive, problem, config: tl.constexpr):
    """Logits, loss and ∂L/∂o of a block of outputs; 0 for rows past the end."""
    values = tl.arange(0, config.block_v)
    w_out = load_tile(operands.w_out, e, e * 0, values, config.values, config.classes, config.block_c)
    classes = tl.arange(0, config.block_c)[None, :]
    real = classes < config.classes
    z = tl.where(real, product(o, w_out), float("-inf"))
    top = tl.max(z, 1)
    weights = tl.exp(z - top[:, None])
    total = tl.sum(weights, 1)
    log_p = tl.where(real, z - top[:, None] - tl.log(total)[:, None], 0.0)
    p = weights / total[:, None]
    if config.soft:
        y = load_tile(operands.targets, e, b, rows, problem.length, config.classes, config.block_c)
        whole = tl.sum(y, 1)
    else:
        at = operands.targets.pointer + e * operands.targets.batch + b * operands.targets.head
        target = tl.load(at + rows.to(tl.int64) * operands.targets.row, mask=alive, other=0)
        y = tl.where(classes == target[:, None], 1.0, 0.0)
        whole = tl.full([config.block], 1.0, tl.float32)
    dz = tl.where(alive[:, None] & real, (p * whole[:, None] - y) * problem.share, 0.0)
    likeliest = tl.min(tl.where(z == top[:, None], classes, config.block_c), 1)
    return Prediction(dz, product(dz, tl.trans(w_out)), -tl.sum(y * log_p, 1), -tl.sum(p * log_p, 1), likeliest)


@triton.jit
def descend_scores(operands, e, b, q, u, lse, expected, rows, end, problem, config: tl.constexpr):
    """The second walk: dq, without its scale, and the statistics of ∂L/∂s."""
    zero = tl.full([config.block], 0.0, tl.float32)
    sums = QuerySums(tl.full([config.block, config.block_d], 0.0, tl.float32), zero, zero)
    # A row past the end has lse −inf, whose weights would be infinite.
    lse = tl.where(rows < problem.length, lse, float("inf"))
    for start in range(0, end, config.block):
        columns = start + tl.arange(0, config.block)
        k = load_tile(operands.k, e, b, columns, problem.length, config.head, config.block_d)
        v = load_tile(operands.v, e, b, columns, problem.length, config.values, config.block_v)
        seen = visible(rows[:, None], columns[None, :], problem.length, config)
        # Keys by queries: ptxas then leaves the loop's constant operand in shared memory instead of registers.
        score, compatibility = tl.trans(product(k, tl.trans(q))), tl.trans(product(v, tl.trans(u)))
        alpha = tl.where(seen, softmax.exponential(score - lse[:, None], True), 0.0)
        advantage = compatibility - expected[:, None]
        ds = alpha * advantage
        variance, score_gradient = sums.variance, sums.score_gradient
        if config.statistics:
            variance += tl.sum(ds * advantage, 1)
            score_gradient += tl.sum(ds * ds, 1)
        sums = QuerySums(sums.dq + product(ds, k), variance, score_gradient)
    return sums
