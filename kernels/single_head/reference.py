"""One attention head, linear readout, cross-entropy: loss, analytic gradients and statistics, in plain PyTorch.

    s_ij = scale q_i·k_j     α_i = softmax(s_i)     o_i = Σ_j α_ij v_j     p_i = softmax(W_Oᵀ o_i)
    L = mean_i −Σ_c y_ic ln p_ic                     u_i = ∂L/∂o_i = W_O (p_i Σ_c y_ic − y_i) / (number of positions)
    b_ij = u_i·v_j           ∂L/∂s_ij = α_ij (b_ij − E_α[b]_i)
    ∂L/∂v_j = Σ_i α_ij u_i   ∂L/∂q_i = scale Σ_j ∂L/∂s_ij k_j   ∂L/∂k_j = scale Σ_i ∂L/∂s_ij q_i
    ∂L/∂W_O = Σ_i o_i ∂L/∂z_i with z = W_Oᵀ o

Source: "Gradient Dynamics of Attention", arXiv 2512.22473. Any float dtype; nothing here calls autograd.

The contract of every implementation: q, k (E, B, N, Dk), v (E, B, N, Dv), w_out (E, Dv, C), x (E, B, N, Dx), weights
w_q, w_k (E, Dx, Dk), w_v (E, Dx, Dv); targets (E, B, N) int64 classes in [0, C), or (E, B, N, C) weights ≥ 0 of the
classes in q's dtype. The loss is the mean over B and N, one number a seed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Statistics(NamedTuple):
    """What the two passes know about every row i and column j, all (E, B, N); u and so b carry the loss's 1/(B·N)."""

    lse: Tensor
    """log Σ_j exp s_ij."""
    entropy: Tensor
    """Routing entropy −Σ_j α_ij ln α_ij, in nats."""
    expected: Tensor
    """Expected compatibility E_α[b]_i = u_i·o_i."""
    variance: Tensor
    """Var_α[b]_i, which is the variance of the advantage."""
    score_gradient: Tensor
    """Σ_j (∂L/∂s_ij)²."""
    largest: Tensor
    """max_j α_ij."""
    nll: Tensor
    """−Σ_c y_ic ln p_ic, in nats."""
    predictive_entropy: Tensor
    """−Σ_c p_ic ln p_ic, in nats."""
    argmax: Tensor
    """The first j with the largest α_ij, int64."""
    predicted: Tensor
    """The first class with the largest p_ic, int64."""
    mass: Tensor
    """Responsibility mass Σ_i α_ij of key j."""
    signed: Tensor
    """Signed routing gradient Σ_i ∂L/∂s_ij."""
    absolute: Tensor
    """Σ_i |∂L/∂s_ij|."""
    value_gradient: Tensor
    """‖∂L/∂v_j‖."""


class HeadStep(NamedTuple):
    """Loss (E,) in nats, the gradients of the mean loss in the shapes of their tensors, and the statistics if asked."""

    loss: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dw_out: Tensor
    statistics: Statistics | None


class WeightStep(NamedTuple):
    """Loss (E,) in nats and the gradients of the four weights."""

    loss: Tensor
    dw_q: Tensor
    dw_k: Tensor
    dw_v: Tensor
    dw_out: Tensor


class Dense(NamedTuple):
    """The maps that the closed forms speak of, (E, B, N, N); quadratic in N, for pictures and tests."""

    responsibility: Tensor
    compatibility: Tensor
    advantage: Tensor


def responsibilities(q: Tensor, k: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Scores s and α = softmax(s), (E, B, N, N); what is masked has score −inf and α = 0."""
    scores = scale * (q @ k.mT)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores, torch.softmax(scores, -1)


def one_hot(targets: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Targets as weights of the classes (E, B, N, C), whatever their form."""
    if targets.dim() == 4:
        return targets.to(dtype)
    return torch.nn.functional.one_hot(targets, classes).to(dtype)


def upstream(o: Tensor, w_out: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ln p (E, B, N, C), ∂L/∂z of the logits, and u = ∂L/∂o (E, B, N, Dv)."""
    log_p = torch.log_softmax(o @ w_out[:, None], -1)
    dz = (log_p.exp() * y.sum(-1, keepdim=True) - y) / (o.shape[1] * o.shape[2])
    return log_p, dz, dz @ w_out[:, None].mT


def attention_cross_entropy(
    q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, causal: bool, scale: float, statistics: bool
) -> HeadStep:
    """The closed forms, written out; see the module's docstring."""
    scores, alpha = responsibilities(q, k, causal, scale)
    o, y = alpha @ v, one_hot(targets, w_out.shape[-1], q.dtype)
    log_p, dz, u = upstream(o, w_out, y)
    nll = -(y * log_p).sum(-1)
    compatibility, expected = u @ v.mT, (u * o).sum(-1)
    ds = alpha * (compatibility - expected[..., None])
    step = HeadStep(
        loss=nll.mean((1, 2)),
        dq=scale * (ds @ k),
        dk=scale * (ds.mT @ q),
        dv=alpha.mT @ u,
        dw_out=(o.mT @ dz).sum(1),
        statistics=None,
    )
    if not statistics:
        return step
    found = Statistics(
        lse=torch.logsumexp(scores, -1),
        entropy=-torch.special.xlogy(alpha, alpha).sum(-1),
        expected=expected,
        variance=(alpha * (compatibility - expected[..., None]).square()).sum(-1),
        score_gradient=ds.square().sum(-1),
        largest=alpha.amax(-1),
        nll=nll,
        predictive_entropy=-(log_p.exp() * log_p).sum(-1),
        argmax=scores.argmax(-1),
        predicted=log_p.argmax(-1),
        mass=alpha.sum(-2),
        signed=ds.sum(-2),
        absolute=ds.abs().sum(-2),
        value_gradient=step.dv.norm(dim=-1),
    )
    return step._replace(statistics=found)


def dense_maps(q: Tensor, k: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, causal: bool, scale: float) -> Dense:
    """α, b and the advantage −(b − E_α[b]), 0 where masked: positive where routing more to j lowers the loss."""
    scores, alpha = responsibilities(q, k, causal, scale)
    o = alpha @ v
    u = upstream(o, w_out, one_hot(targets, w_out.shape[-1], q.dtype))[2]
    compatibility = (u @ v.mT).masked_fill(scores == -torch.inf, 0.0)
    advantage = ((u * o).sum(-1, keepdim=True) - compatibility).masked_fill(scores == -torch.inf, 0.0)
    return Dense(alpha, compatibility, advantage)


def single_head_step(
    x: Tensor,
    targets: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    causal: bool,
    scale: float,
) -> WeightStep:
    """q = x w_q, k = x w_k, v = x w_v; then ∂L/∂w_q = Σ xᵀ ∂L/∂q and so on."""
    q, k, v = (x @ w[:, None] for w in (w_q, w_k, w_v))
    step = attention_cross_entropy(q, k, v, w_out, targets, causal, scale, False)
    dw_q, dw_k, dw_v = ((x.mT @ d).sum(1) for d in (step.dq, step.dk, step.dv))
    return WeightStep(step.loss, dw_q, dw_k, dw_v, step.dw_out)


RECORD = 11
"""Numbers of a record: predictive entropy, accuracy, routing entropy, advantage variance, four gradient norms, and
loss, predictive entropy, accuracy on held-out data."""
Data = tuple[Tensor, Tensor]
"""x and targets."""


def train_single_head(
    x: Tensor,
    targets: Tensor,
    weights: Sequence[Tensor],
    rates: Tensor,
    steps: int,
    every: int,
    limit: float,
    held_out: Data | None,
    causal: bool,
    scale: float,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Full-batch gradient descent, seed by seed: (trained weights, loss (E, steps + 1), records (E, R, RECORD)).

    weights: w_q, w_k, w_v, w_out, which are not changed; rates (E, 4); R = steps // every + 1. Loss and records are
    float64: loss[t] before step t, the last one after all. NaN after a seed's loss exceeded `limit` or was none; its
    weights then stay.
    """
    loss, records = unfilled(x, steps, every)
    trained = []
    for e in range(len(x)):
        w = [tensor[e : e + 1].clone() for tensor in weights]
        data = x[e : e + 1], targets[e : e + 1]
        fresh = (held_out[0][e : e + 1], held_out[1][e : e + 1]) if held_out else None
        for t in range(steps + 1):
            step = single_head_step(data[0], data[1], w[0], w[1], w[2], w[3], causal, scale)
            loss[e, t] = step.loss[0]
            if not loss[e, t] <= limit:
                break
            if t % every == 0:
                records[e, t // every] = record(attention_cross_entropy, data, fresh, w, causal, scale)[0]
            if t < steps:
                for tensor, gradient, rate in zip(w, step[1:], rates[e].tolist(), strict=True):
                    tensor -= rate * gradient
        trained.append(w)
    return [torch.cat(same) for same in zip(*trained, strict=True)], loss, records


def unfilled(x: Tensor, steps: int, every: int) -> tuple[Tensor, Tensor]:
    """Loss and records before training: NaN."""
    loss = x.new_full((len(x), steps + 1), torch.nan, dtype=torch.float64)
    return loss, x.new_full((len(x), steps // every + 1, RECORD), torch.nan, dtype=torch.float64)


def record(
    head_step: Callable[..., HeadStep],
    data: Data,
    held_out: Data | None,
    w: Sequence[Tensor],
    causal: bool,
    scale: float,
) -> Tensor:
    """The record of all seeds at these weights, (E, RECORD); head_step: an attention_cross_entropy."""
    x, targets = data
    step = head_step(*(x @ m[:, None] for m in w[:3]), w[3], targets, causal, scale, True)
    found = step.statistics
    assert found is not None
    gradients = [(x.mT @ d).sum(1) for d in (step.dq, step.dk, step.dv)]
    norms = [gradient.norm(dim=(1, 2)) for gradient in (*gradients, step.dw_out)]
    # u carries the loss's 1/(B·N): the variance of a position's own loss is (B·N)² times as large, and this is a mean.
    variance = found.variance.sum((1, 2)) * (x.shape[1] * x.shape[2])
    fresh = [torch.full_like(step.loss, torch.nan)] * 3
    if held_out:
        other = head_step(*(held_out[0] @ m[:, None] for m in w[:3]), w[3], held_out[1], causal, scale, True)
        fresh = [other.loss, *_outcome(other, held_out[1])]
    return torch.stack([*_outcome(step, targets), found.entropy.mean((1, 2)), variance, *norms, *fresh], 1).double()


def _outcome(step: HeadStep, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean predictive entropy (E,), and accuracy (E,) of the likeliest class."""
    found = step.statistics
    assert found is not None
    classes = targets if targets.dim() == 3 else targets.argmax(-1)
    hits = (found.predicted == classes).to(step.loss.dtype).mean((1, 2))
    return found.predictive_entropy.mean((1, 2)), hits
