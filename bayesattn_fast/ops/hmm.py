"""The differentiable launcher of the HMM filter: posterior, predictive, evidence and entropy in one pass.

`posteriors.hmm_filter` is the public function; the definition is kernels/hmm/reference.py, and the gradients are its
reverse mode, written out in kernels/hmm/backward.h and backward.py.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ..backends import resolve
from ..kernels.entropy.reference import entropy_bits
from ..kernels.hmm import native, reference

Maybe = Tensor | None


def plain_filter(
    transition: Tensor, emission: Tensor, observations: Tensor, initial: Tensor, lengths: Maybe
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Posterior, predictive, evidence, entropy and ln p(o_t | o_<t) (B, T) by the reference: differentiable torch."""
    inside = torch.ones_like(observations, dtype=torch.bool)
    if lengths is not None:
        inside = torch.arange(observations.shape[1], device=lengths.device) < lengths[:, None]
    seen = torch.where(inside, observations, -1)
    likelihood = reference.discrete_likelihoods(emission, seen)
    first = initial.expand(len(observations), transition.shape[-1])
    posterior, log_likelihood = reference.filter_likelihoods(transition, likelihood, first)
    predictive = reference.propagate(reference.propagate(posterior, transition.unsqueeze(-3)), emission.unsqueeze(-3))
    return (
        posterior * inside[..., None],
        predictive * inside[..., None],
        torch.where(seen < 0, 0.0, log_likelihood).sum(-1),
        entropy_bits(posterior) * inside,
        log_likelihood,
    )


@custom_op("bayesattn::hmm_filter", mutates_args=())
def launch(
    transition: Tensor, emission: Tensor, observations: Tensor, initial: Tensor, lengths: Maybe, validate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The filter's results and status () int64; arguments of posteriors.hmm_filter, initial (B, S) or (S,).

    The Triton kernels look for nothing to refuse: their caller has checked, and their status is 0.
    """
    if resolve("hmm", transition.device) == "triton":
        return *_triton_filter(transition, emission, observations, initial, lengths), observations.new_zeros(())
    fields, status = native.hmm_filter(transition, emission, observations, initial, lengths, validate)
    return (*fields, torch.tensor(status))


@launch.register_fake
def _(transition, emission, observations, initial, lengths, validate):  # type: ignore[no-untyped-def]
    batch, length = observations.shape
    new = transition.new_empty
    status = observations.new_empty(())
    states, symbols = emission.shape[-2:]
    return new(batch, length, states), new(batch, length, symbols), new(batch), new(batch, length), status


@custom_op("bayesattn::hmm_filter_backward", mutates_args=())
def launch_backward(
    u_posterior: Maybe,
    u_predictive: Maybe,
    u_evidence: Maybe,
    u_entropy: Maybe,
    transition: Tensor,
    emission: Tensor,
    observations: Tensor,
    initial: Tensor,
    lengths: Maybe,
    posterior: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of transition, emission and initial, in their shapes, for the upstream gradients of the results."""
    upstream = (u_posterior, u_predictive, u_evidence, u_entropy)
    rest = (transition, emission, observations, initial, lengths, posterior)
    gradients: tuple[Tensor, Tensor, Tensor]
    if resolve("hmm", transition.device) == "triton":
        from ..kernels.hmm import backward

        gradients = backward.hmm_filter_backward(upstream, *rest)
    else:
        gradients = native.hmm_filter_backward(upstream, *rest)
    inputs = (transition, emission, initial)
    pairs = zip(inputs, gradients, strict=True)
    return tuple(g if x.dim() == g.dim() else g.sum(0) for x, g in pairs)  # type: ignore[return-value]


@launch_backward.register_fake
def _(a, b, c, d, transition, emission, observations, initial, lengths, posterior):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (transition, emission, initial))


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "bayesattn::hmm_filter* are the launchers of bayesattn_fast.posteriors.hmm_filter and carry no gradient of "
        "their own; call hmm_filter"
    )


# Without an autograd entry of their own the bare ops would return silent zeros under some transforms.
launch.register_autograd(_refuse)
launch_backward.register_autograd(_refuse)


def _fold(size: int, in_dims: tuple[int | None, ...], tensors: tuple[Maybe, ...], batched: int) -> list[Maybe]:
    """Join vmap's axis with the batch. Shared matrices get a batch axis first, by stride where they can."""
    always = tensors[batched]
    assert always is not None
    rows = always.shape[1 if in_dims[batched] == 0 else 0]
    folded: list[Maybe] = []
    for tensor, dim, own in zip(tensors, in_dims, _OWN_DIMS, strict=True):
        if tensor is not None:
            tensor = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            if tensor.dim() == own + 1:
                tensor = tensor.unsqueeze(1).expand(size, rows, *tensor.shape[1:])
            tensor = tensor.flatten(0, 1)
        folded.append(tensor)
    return folded


def _joined(size: int, tensor: Maybe, dim: int | None) -> Maybe:
    """A tensor that always has a batch axis, with vmap's axis joined to it."""
    if tensor is None:
        return None
    return (tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).flatten(0, 1)


# Axes of one sequence's share of transition, emission, observations, initial and lengths.
_OWN_DIMS = (2, 2, 1, 1, 0)


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(transition, emission, observations, initial, lengths, validate):  # type: ignore[no-untyped-def]
        return launch(transition, emission, observations, initial, lengths, validate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        transition, emission, observations, initial, lengths, _ = inputs
        ctx.save_for_backward(transition, emission, observations, initial, lengths, output[0])
        ctx.mark_non_differentiable(output[4])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *upstream: Maybe) -> tuple[Maybe, ...]:
        made: Any = _FilterBackward.apply(*upstream[:4], *ctx.saved_tensors)
        d_transition, d_emission, d_initial = made
        return d_transition, d_emission, None, d_initial, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        outputs = _Filter.apply(*_fold(info.batch_size, in_dims[:5], args[:5], 2), args[5])
        split = [x.unflatten(0, (info.batch_size, -1)) for x in outputs[:4]]
        return (*split, outputs[4]), (0, 0, 0, 0, None)


class _FilterBackward(torch.autograd.Function):
    """The first derivative; its own derivative is taken through the reference."""

    @staticmethod
    def forward(a, b, c, d, transition, emission, observations, initial, lengths, posterior):  # type: ignore[no-untyped-def]
        return launch_backward(a, b, c, d, transition, emission, observations, initial, lengths, posterior)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:9])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *above: Maybe) -> tuple[Maybe, ...]:
        *upstream, transition, emission, observations, initial, lengths = ctx.saved_tensors
        given = [i for i, u in enumerate(upstream) if u is not None]

        def first_derivative(*tensors: Tensor) -> tuple[Tensor, ...]:
            def results(p: Tensor, e: Tensor, first: Tensor) -> tuple[Tensor, ...]:
                made = plain_filter(p, e, observations, first, lengths)
                return tuple(made[i] for i in given)

            return torch.func.vjp(results, *tensors[:3])[1](tuple(tensors[3:]))

        tensors = (transition, emission, initial, *(upstream[i] for i in given))
        outputs, pullback = torch.func.vjp(first_derivative, *tensors)[:2]
        filled = tuple(torch.zeros_like(o) if a is None else a for o, a in zip(outputs, above, strict=True))
        d_transition, d_emission, d_initial, *d_given = pullback(filled)
        d_upstream: list[Maybe] = [None] * 4
        for i, gradient in zip(given, d_given, strict=True):
            d_upstream[i] = gradient
        return (*d_upstream, d_transition, d_emission, None, d_initial, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        size = info.batch_size
        inputs = _fold(size, in_dims[4:9], args[4:9], 2)
        rest = [_joined(size, t, d) for t, d in zip((*args[:4], args[9]), (*in_dims[:4], in_dims[9]), strict=True)]
        gradients = _FilterBackward.apply(*rest[:4], *inputs, rest[4])
        # A matrix that a whole batch shares has one gradient.
        shared = [args[i].dim() - (in_dims[i] is not None) == own for i, own in ((4, 2), (5, 2), (7, 1))]
        split = [g.unflatten(0, (size, -1)) for g in gradients]
        return tuple(g.sum(1) if one else g for g, one in zip(split, shared, strict=True)), (0, 0, 0)


def hmm_filter(
    transition: Tensor,
    emission: Tensor,
    observations: Tensor,
    initial: Tensor,
    lengths: Maybe,
    validate: bool,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], int | Tensor]:
    """The native or the Triton filter, differentiable in transition, emission and initial; see posteriors.hmm_filter.

    Returns posterior, predictive, log_evidence and entropy, and the status bits of kernels/_native/problem.py, which
    only the native kernels set. `out` is for them alone.
    """
    if out is None and _transformed(transition, emission, initial):
        *fields, status = _Filter.apply(transition, emission, observations, initial, lengths, validate)
        return (*fields,), status
    if resolve("hmm", transition.device) == "triton":
        return _triton_filter(transition, emission, observations, initial, lengths), 0
    return native.hmm_filter(transition, emission, observations, initial, lengths, validate, out)


def by_triton(*inputs: Tensor) -> bool:
    """True where the Triton filter takes transition, emission, …: float32, and sizes that fit its registers."""
    if resolve("hmm", inputs[0].device) != "triton" or any(x.dtype != torch.float32 for x in inputs):
        return False
    from ..kernels.hmm import backward, forward

    kernel = backward if _transformed(*inputs) else forward
    return kernel.takes(*inputs[1].shape[-2:])


def _triton_filter(
    transition: Tensor, emission: Tensor, observations: Tensor, initial: Tensor, lengths: Maybe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from ..kernels.hmm import forward

    return forward.hmm_filter(transition, emission, observations, initial, lengths)


def _transformed(*inputs: Tensor) -> bool:
    """True where autograd, torch.func or torch.compile must see the op: it costs more than small batches do."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return True
    # What autograd.Function.apply itself asks.
    return torch._C._are_functorch_transforms_active()
