"""The training step of an ensemble: data, forward, loss, backward, clip and update, each seed for itself."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .. import models
from ..ops.attention_record import record_dynamics
from ..ops.score import cross_entropy
from ..tunnels.protocol import Batch, Tunnel
from . import optimizer, watch
from .checkpoint import Checkpoint
from .config import RunConfig
from .graph import GradientGraph
from .phases import PhaseClock

HISTORY = ("loss", "floor", "gradient_norm", "lr")


@dataclass(frozen=True)
class StepResult:
    """What one update saw, each (E,): loss and Bayes floor of its batch in nats, gradient norm; and the rate used."""

    loss: Tensor
    floor: Tensor
    gradient_norm: Tensor
    lr: float


def seed_losses(logits: Tensor, batch: Batch, targets: str) -> Tensor:
    """Mean cross-entropy of each seed (E,) in nats, on sampled answers ("hard") or the exact predictive ("soft")."""
    answers = {"targets": batch.targets} if targets == "hard" else {"predictive": batch.predictive}
    return cross_entropy(logits.float(), **answers).flatten(1).mean(1)


class Engine:
    """One ensemble in training; `step` counts the updates done.

    A seed whose loss or gradient stops being finite is frozen at its last finite weights: `diverged[i]` is the step at
    which that happened, −1 while it is alive. The others go on.
    """

    def __init__(self, config: RunConfig, device: torch.device | str = "cpu") -> None:
        self.config, self.device = config, torch.device(device)
        self.model = models.build(config.model, config.tunnel, config.seeds).to(self.device)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = optimizer.build(config.training, self.model)
        self.shares = torch.tensor([rate / config.training.lr for rate in config.rates], device=self.device)
        self.diverged = torch.full((len(config.seeds),), -1, dtype=torch.int64)
        self.step = 0
        self.recorded_steps: list[int] = []
        self.recorded: list[StepResult] = []
        watch.check(self.model, config.training.watch_every)
        self.watched_steps: list[int] = []
        self.watched: list[Tensor] = []
        self.clock: PhaseClock | None = None
        self.graph: GradientGraph | Literal[False] | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast to bfloat16 where the run asks for it."""
        if self.config.training.precision == "bf16":
            # Without its cache of cast weights, which would outlive the graph that they were captured in.
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=self.device.type == "cpu")
        return nullcontext()

    def sample(self) -> Batch:
        """The batch of the present step."""
        config = self.config
        return config.tunnel.sample(config.seeds, self.step, config.training.batch, device=self.device)

    def update(self) -> StepResult:
        """One optimiser step of every living seed."""
        if self.clock:
            self.clock.start()
        training, batch = self.config.training, self.sample()
        self._end("data")
        losses, norms = self._watched_gradients(batch) if self._watches() else self._scaled_gradients(batch)
        self._note_divergence(losses, norms)
        dead = (self.diverged >= 0).to(self.device)
        rate = optimizer.learning_rate(training, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._take_step(dead)
        floor = batch.entropy.flatten(1).mean(1) * math.log(2)
        result = StepResult(losses, floor, norms, rate)
        self.step += 1
        if self.step % training.log_every == 0 or self.step == 1:
            self.recorded_steps.append(self.step)
            self.recorded.append(result)
        self._end("optimiser")
        return result

    def _scaled_gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and gradient norm of every seed (E,), as `_gradients` returns them; on a GPU from one captured graph."""
        if self.device.type != "cuda" or self.clock:  # the clock looks between the phases
            return self._gradients(batch)
        if self.graph is None:
            self.graph = GradientGraph.capture(self._gradients, batch, self.parameters)
        return self.graph(batch) if self.graph else self._gradients(batch)

    def _gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss and gradient norm of every seed (E,); in the parameters its clipped gradients, 0 where not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision():
            logits = self.model(batch.inputs)
        losses = seed_losses(logits, batch, self.config.training.targets)
        self._end("forward")
        losses.sum().backward()
        self._end("backward")
        norms, clip = optimizer.gradient_norms(self.parameters), self.config.training.clip
        factors = (clip / (norms + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norms)
        broken = ~(losses.detach().isfinite() & norms.isfinite())
        optimizer.scale_gradients(self.parameters, factors.masked_fill(broken, 0.0))
        return losses.detach(), norms

    def _watches(self) -> bool:
        every = self.config.training.watch_every
        return every > 0 and self.step % every == 0

    def _watched_gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same, with the step's routing recorded beside."""
        with record_dynamics(self.model) as record:
            found = self._gradients(batch)
        self.watched_steps.append(self.step)
        self.watched.append(watch.summarise(record, len(self.config.seeds), batch.entropy[0].numel()))
        return found

    def _end(self, phase: str) -> None:
        if self.clock:
            self.clock.end(phase)

    def _note_divergence(self, losses: Tensor, norms: Tensor) -> None:
        broken = ~(losses.isfinite() & norms.isfinite()).cpu()
        self.diverged[broken & (self.diverged < 0)] = self.step

    def _take_step(self, dead: Tensor) -> None:
        """The optimiser's step, of which a seed with a rate of its own takes its share and a dead one nothing.

        Every optimiser here moves weights in proportion to the rate. Momentum and decay would still move a dead seed.
        """
        if not len(self.shares) and not dead.any():
            self.optimizer.step()
            return
        shares = (self.shares if len(self.shares) else torch.ones_like(dead, dtype=torch.float32)).masked_fill(
            dead, 0.0
        )
        kept = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer.step()
        with torch.no_grad():
            for parameter, old in zip(self.parameters, kept, strict=True):
                share = shares.view(-1, *[1] * (parameter.dim() - 1))
                moved = torch.where(share == 1, parameter, old + share * (parameter - old))
                parameter.copy_(torch.where(share == 0, old, moved))

    def predictor(self, tunnel: Tunnel | None = None) -> Callable[[Tensor], Tensor]:
        """inputs → float32 logits (E, B, P, C) at the scored positions of `tunnel`, by default the trained one.

        ValueError where the model has no positions for so long a tunnel.
        """
        tunnel = tunnel or self.config.tunnel
        self.model.check_length(tunnel.length)
        positions = torch.tensor(tunnel.positions, device=self.device)

        @torch.no_grad()
        def predict(inputs: Tensor) -> Tensor:
            with self.precision():
                return self.model(inputs, positions).float()

        return predict

    def checkpoint(self) -> Checkpoint:
        """Everything needed to go on exactly."""
        tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors["diverged"] = self.diverged
        tensors["history.step"] = torch.tensor(self.recorded_steps, dtype=torch.int64)
        for key, values in self.history().items():
            tensors[f"history.{key}"] = values
        if self.watched:
            tensors["watch.step"] = torch.tensor(self.watched_steps, dtype=torch.int64)
            tensors["watch.values"] = torch.stack(self.watched)
        return Checkpoint(self.step, tensors)

    def history(self) -> dict[str, Tensor]:
        """Recorded values, each (records, E) except lr (records,), in float64."""
        seeds = len(self.config.seeds)
        made = {}
        for key in HISTORY:
            values = [torch.as_tensor(getattr(record, key), dtype=torch.float64).cpu() for record in self.recorded]
            made[key] = torch.stack(values) if values else torch.empty((0,) if key == "lr" else (0, seeds))
        return made

    def restore(self, saved: Checkpoint) -> None:
        """Continue from `saved`; ValueError where it lacks a tensor or one has another shape."""
        self.step = saved.step
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(_tensor(saved, f"model.{name}", parameter.shape))
        parameters = dict(self.model.named_parameters())
        for full_name, value in saved.tensors.items():
            kind, _, rest = full_name.partition(".")
            key, _, name = rest.partition(".")
            if kind == "optimizer" and name in parameters:
                # The step counter of a fused optimiser lies beside the weights, as they do.
                self.optimizer.state[parameters[name]][key] = value.clone().to(self.device)
        self.diverged = _tensor(saved, "diverged", self.diverged.shape).clone()
        self.recorded_steps = saved.tensors["history.step"].tolist()
        columns = [_tensor(saved, f"history.{key}") for key in HISTORY]
        self.recorded = [
            StepResult(loss, floor, norm, float(lr)) for loss, floor, norm, lr in zip(*columns, strict=True)
        ]
        if self.config.training.watch_every and self.step:
            self.watched = list(_tensor(saved, "watch.values").unbind())
            self.watched_steps = saved.tensors["watch.step"].tolist()


def _tensor(saved: Checkpoint, name: str, shape: torch.Size | None = None) -> Tensor:
    if name not in saved.tensors:
        raise ValueError(f"the checkpoint lacks {name}")
    tensor = saved.tensors[name]
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"the checkpoint's {name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    return tensor
