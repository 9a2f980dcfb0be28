"""Filter of hidden Markov models, each sequence with its own matrices: posterior, predictive, evidence, entropy.

For correctness alone also its gradients, the filter of a chain seen through Gaussian noise, and the two samplers.

hmmlearn is given a part of the batch, since it takes one model at a time; it smooths as well, so only its evidence is
compared. A step takes 2 S² + 2 S O multiplications and additions and S + 1 logarithms.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...posteriors import hmm_filter, markov_predictive
from ...tunnels import Hmm, Markov
from ..case import OURS, Case, Contender, Draw, Prepared, Shape, join
from ..draws import draw_cases
from ..limits import Cost
from ..peers import posteriors as peers

BATCH, FEW = 4096, 32
LENGTHS = (20, 80, 320)
TOLERANCE, OF_GRADIENTS = 2e-6, 1e-5
VERIFY = ((64, 5, 5, 20), (7, 3, 2, 1), (16, 13, 20, 65))
NOISE, INPUTS = 0.7, 6
FIELDS = ("posterior", "predictive", "log evidence", "entropy")


def cases() -> list[Case]:
    """Five states and five symbols, as in the tunnel, at three lengths."""
    made = [
        _case("filter", (BATCH * 20 // length, 5, 5, length), "tunnel", TOLERANCE, _prepare, curve="T")
        for length in LENGTHS
    ]
    for shape in VERIFY:
        made += [
            _case("filter", shape, "verify", TOLERANCE, _prepare),
            _case("gradients", shape, "verify", OF_GRADIENTS, _prepare_gradients, ("dtransition", "demission")),
            _case("Gaussian filter", shape, "verify", OF_GRADIENTS, _prepare_gaussian),
        ]
    return made + draw_cases("hmm", Hmm()) + draw_cases("hmm", Markov(chain=65))


def _case(
    work: str,
    sizes: tuple[int, int, int, int],
    size: str,
    tolerance: float,
    prepare: Callable[[Draw, Shape], Prepared],
    results: tuple[str, ...] = FIELDS,
    curve: str = "",
) -> Case:
    batch, states, symbols, length = sizes
    matrices, filtered = batch * states * (states + symbols), batch * length * (states + symbols + 1) + batch
    cost = Cost(
        4.0 * (matrices + filtered) + 8.0 * batch * length,
        batch * length * 2.0 * states * (states + symbols),
        batch * length * (states + 1.0),
    )
    shape = {"batch": batch, "states": states, "symbols": symbols, "T": length}
    return Case(
        "hmm", work, shape, torch.float32, size, "sequences", batch, cost, tolerance, prepare, {"batch": 64}, curve,
        results=results,
    )  # fmt: skip


def _model(draw: Draw, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Transition and emission matrices of every sequence, and what was seen."""
    batch, states, symbols, length = (shape[name] for name in ("batch", "states", "symbols", "T"))
    p, e = draw.simplex(batch, states, states), draw.simplex(batch, states, symbols)
    return p, e, draw.integers(symbols, batch, length)


def _prepare(draw: Draw, shape: Shape) -> Prepared:
    p, e, seen = _model(draw, shape)
    few = min(FEW, len(seen))

    def ours() -> tuple[Tensor, ...]:
        found = hmm_filter(p, e, seen)
        return found.posterior, found.predictive, found.log_evidence, found.entropy

    contenders = {
        OURS: Contender(ours),
        "vectorised torch": Contender(lambda: peers.torch_filter(p, e, seen), looser=5.0),
    }
    missing: dict[str, str] = {}
    if draw.peers and draw.device.type == "cpu":
        join(contenders, missing, "dynamax", lambda: Contender(peers.dynamax_filter(p, e, seen), looser=20.0))
        join(contenders, missing, "hmmlearn", lambda: _hmmlearn(p, e, seen, few))
    return Prepared(contenders, lambda: peers.torch_filter(p.double(), e.double(), seen), missing)


def _hmmlearn(p: Tensor, e: Tensor, seen: Tensor, few: int) -> Contender:
    run = peers.hmmlearn_filter(p[:few], e[:few], seen[:few])
    return Contender(run, exact=lambda exact: (exact[2][:few],), share=few / len(seen), looser=20.0)


def _prepare_gradients(draw: Draw, shape: Shape) -> Prepared:
    p, e, seen = _model(draw, shape)
    upstream = [draw.normal(*field.shape) for field in hmm_filter(p, e, seen)]

    def through(
        p: Tensor, e: Tensor, run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        leaves = p.detach().requires_grad_(), e.detach().requires_grad_()
        return torch.autograd.grad(run(*leaves, seen), leaves, [u.to(p.dtype) for u in upstream])

    ours = Contender(lambda: through(p, e, lambda *given: tuple(hmm_filter(*given, validate=False))))
    return Prepared({OURS: ours}, lambda: through(p.double(), e.double(), peers.torch_filter))


def _prepare_gaussian(draw: Draw, shape: Shape) -> Prepared:
    """One chain for all sequences, its symbols seen as points with noise."""
    batch, states, length = (shape[name] for name in ("batch", "states", "T"))
    p, means = draw.simplex(states, states), draw.normal(states, INPUTS)
    x = means[draw.integers(states, batch, length)] + NOISE * draw.normal(batch, length, INPUTS)

    def ours() -> tuple[Tensor, ...]:
        found = markov_predictive(x, means, p, noise=NOISE)
        return found.posterior, found.predictive, found.log_evidence, found.entropy

    return Prepared(
        {OURS: Contender(ours)}, lambda: peers.torch_gaussian_filter(x.double(), means.double(), p.double(), NOISE)
    )
