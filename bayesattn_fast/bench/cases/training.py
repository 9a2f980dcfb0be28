"""Training steps of E packed transformers, data and optimiser included, beside the same seeds one after another.

"plain loop" is a transformer of torch's own layers and AdamW on the same batches, a seed at a time; "ours, one by one"
is our engine with one seed. A step costs 6 multiplications and additions a weight and position. Compared are the losses
of two steps, the second of which depends on the first update.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...models import ModelConfig
from ...training.config import RunConfig, TrainingConfig
from ...training.engine import Engine
from ...tunnels import Bijection
from ..case import OURS, Case, Contender, Draw, Prepared, Results, Shape
from ..limits import Cost
from ..peers.training import PlainLoop

TUNNEL = Bijection(symbols=20, pairs=19)
MODEL = ModelConfig(layers=2, d_model=64, heads=2)
BATCH, STEPS, RATE = 16, 2, 1e-3
PACKED, ON_GPU = (1, 8), (64, 512)


def cases() -> list[Case]:
    """1 and 8 seeds, and 64 and 512 where there is a GPU."""
    made = [_case(seeds, ("cpu", "cuda")) for seeds in PACKED]
    return [*made, *(_case(seeds, ("cuda",)) for seeds in ON_GPU)]


def _case(seeds: int, devices: tuple[str, ...]) -> Case:
    weights = 12 * MODEL.layers * MODEL.d_model**2 + 20 * MODEL.d_model
    # Weights, gradients and the optimiser's two averages are read and written once.
    cost = Cost(STEPS * 32.0 * seeds * weights, STEPS * 6.0 * seeds * BATCH * TUNNEL.length * weights)
    return Case(
        "training", "two steps of a transformer", {"E": seeds, "batch": BATCH, "N": TUNNEL.length, "d": MODEL.d_model},
        torch.float32, "tunnel", "seed·steps", STEPS * seeds, cost, 1e-4, _prepare, {"E": min(seeds, 2)},
        devices=devices,
    )  # fmt: skip


def _engine(seeds: tuple[int, ...], device: torch.device) -> Engine:
    training = TrainingConfig(batch=BATCH, lr=RATE, warmup=0, schedule="constant", clip=0.0)
    return Engine(RunConfig(TUNNEL, MODEL, training, seeds), device)


def _prepare(draw: Draw, shape: Shape) -> Prepared:
    first = int(draw.integers(2**31, 1))
    seeds = tuple(range(first, first + shape["E"]))
    share = 1 / len(seeds)

    def alone(exact: Results) -> Results:
        return (exact[0][:, :1],)

    contenders = {
        OURS: Contender(_packed(_engine(seeds, draw.device))),
        "plain loop": Contender(_plain(seeds[:1], draw.device, torch.float32), alone, share, looser=3.0),
    }
    if len(seeds) > 1:
        contenders["ours, one by one"] = Contender(_packed(_engine(seeds[:1], draw.device)), alone, share)
    return Prepared(contenders, lambda: (_plain(seeds, draw.device, torch.float64)(),))


def _packed(engine: Engine) -> Callable[[], Tensor]:
    """The next steps of an engine: losses (STEPS, E)."""
    return lambda: torch.stack([engine.update().loss for _ in range(STEPS)])


def _plain(seeds: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    """The next steps of a plain loop for each seed: losses (STEPS, E)."""
    named = dict(_engine(seeds, device).model.named_parameters())
    loops = []
    for i, seed in enumerate(seeds):
        weights = {name: value.detach()[i].to(dtype) for name, value in named.items()}
        loops.append(PlainLoop(MODEL, TUNNEL, seed, BATCH, RATE, weights))
    return lambda: torch.stack([torch.stack([loop.step() for _ in range(STEPS)]) for loop in loops], 1)
