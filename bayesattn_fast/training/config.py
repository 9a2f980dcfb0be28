"""What decides the numbers of a run, and nothing else: tunnel, model, optimisation, seeds."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..models import ModelConfig
from ..tunnels import TUNNELS
from ..tunnels.protocol import Tunnel


@dataclass(frozen=True)
class TrainingConfig:
    """Optimisation, evaluation and bookkeeping."""

    steps: int = 2000
    """Optimiser steps."""
    batch: int = 64
    """Sequences per seed and step."""
    lr: float = 1e-3
    """Peak learning rate."""
    warmup: int = 100
    """Steps of linear warm-up."""
    schedule: Literal["constant", "cosine"] = "cosine"
    """After the warm-up: constant, or cosine to zero at the last step."""
    optimizer: Literal["adamw", "sgd", "em"] = "adamw"
    """Optimiser; em: sgd that moves attention values (the M-step) faster than all else (transformer only)."""
    value_lr_ratio: float = 10.0
    """Rate of attention values over the rate of all else (em)."""
    weight_decay: float = 0.01
    """Decoupled weight decay (adamw)."""
    beta1: float = 0.9
    """Decay of the gradient's running mean (adamw)."""
    beta2: float = 0.999
    """Decay of the squared gradient's running mean (adamw)."""
    clip: float = 1.0
    """Largest gradient norm of each seed; 0 switches clipping off."""
    targets: Literal["hard", "soft"] = "hard"
    """hard: sampled answers, the paper's loss; soft: the exact predictive."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the forward pass; weights stay in float32."""
    watch_every: int = 0
    """Steps between records of every head's routing and advantage, for the report; 0: none (transformer only)."""
    log_every: int = 10
    """Steps between recorded losses."""
    eval_every: int = 500
    """Steps between evaluations on held-out sequences."""
    eval_sequences: int = 2048
    """Held-out sequences of an evaluation."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every", "eval_every", "eval_sequences", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("warmup", "weight_decay", "clip", "watch_every"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative; got {getattr(self, name)}")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be positive and finite; got {self.lr}")
        if not 0 < self.value_lr_ratio < float("inf"):
            raise ValueError(f"value_lr_ratio must be positive and finite; got {self.value_lr_ratio}")
        if self.optimizer != "em" and self.value_lr_ratio != TrainingConfig.value_lr_ratio:
            raise ValueError(
                f"value_lr_ratio belongs to optimizer em; got {self.value_lr_ratio} with optimizer {self.optimizer}"
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1); got {getattr(self, name)}")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of a run."""

    tunnel: Tunnel
    model: ModelConfig
    training: TrainingConfig
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()
    """Peak learning rate of each seed, in place of training.lr; a seed may then occur once for every rate."""

    def __post_init__(self) -> None:
        if self.rates and len(self.rates) != len(self.seeds):
            raise ValueError(f"rates must hold one for each of the {len(self.seeds)} seeds; got {len(self.rates)}")
        for rate in self.rates:
            if not 0 < rate < float("inf"):
                raise ValueError(f"rates must be positive and finite; got {rate}")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for config.json."""
        return {
            "tunnel": {"name": self.tunnel.name, **dataclasses.asdict(self.tunnel)},  # type: ignore[call-overload]
            "model": dataclasses.asdict(self.model),
            "training": _training_dict(self.training),
            "seeds": list(self.seeds),
            **({"rates": list(self.rates)} if self.rates else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "RunConfig":
        """The inverse of to_dict; ValueError where something is missing or unknown."""
        try:
            tunnel = dict(data["tunnel"])
            name = tunnel.pop("name")
            if name not in TUNNELS:
                raise ValueError(f"unknown tunnel {name!r}")
            return cls(
                _tupled(TUNNELS[name], tunnel),
                _tupled(ModelConfig, data["model"]),
                _tupled(TrainingConfig, data["training"]),
                tuple(int(seed) for seed in data["seeds"]),
                tuple(float(rate) for rate in data.get("rates", ())),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a run configuration: {error}") from None

    def difference(self, other: "RunConfig") -> str | None:
        """The first setting in which two runs differ, in words; None where they agree."""
        mine, theirs = self.to_dict(), other.to_dict()
        for part in ("tunnel", "model", "training"):
            for key in sorted({*mine[part], *theirs[part]}):
                if (a := mine[part].get(key)) != (b := theirs[part].get(key)):
                    return f"{key} is {b} there and {a} here"
        if mine["seeds"] != theirs["seeds"]:
            return f"the seeds are {_shorten(theirs['seeds'])} there and {_shorten(mine['seeds'])} here"
        if mine.get("rates") != theirs.get("rates"):
            return f"the rates are {theirs.get('rates')} there and {mine.get('rates')} here"
        return None


def _training_dict(training: TrainingConfig) -> dict[str, Any]:
    """The settings that decide numbers: one of a later version stays out where it is not used, so that runs made
    before it keep their fingerprint."""
    values = dataclasses.asdict(training)
    if training.optimizer != "em":
        del values["value_lr_ratio"]
    if training.watch_every == 0:
        del values["watch_every"]
    return values


def _tupled(cls: type, values: dict[str, Any]) -> Any:
    """Build a dataclass from JSON, where tuples have become lists."""
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _shorten(seeds: Iterable[int]) -> str:
    seeds = list(seeds)
    return str(seeds) if len(seeds) <= 6 else f"[{seeds[0]}, …, {seeds[-1]}] ({len(seeds)})"


def parse_seeds(text: str | int | Iterable[int]) -> tuple[int, ...]:
    """Seeds from a count ("3" → 0, 1, 2), a range ("5:8" → 5, 6, 7) or a list ("42,2024").

    ValueError naming what came and what is accepted.
    """
    accepted = "a count (3), a range (0:64) or a list (42,2024)"
    if isinstance(text, int):
        text = str(text)
    if not isinstance(text, str):
        seeds = tuple(int(seed) for seed in text)
    else:
        try:
            if ":" in text:
                first, last = (int(part) for part in text.split(":"))
                seeds = tuple(range(first, last))
            elif "," in text:
                seeds = tuple(int(part) for part in text.split(",") if part.strip())
            else:
                seeds = tuple(range(int(text)))
        except ValueError:
            raise ValueError(f"seeds must be {accepted}; got {text!r}") from None
    if not seeds:
        raise ValueError(f"seeds must name at least one seed, as {accepted}; got {text!r}")
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must differ from each other; got {text!r}")
    if min(seeds) < 0 or max(seeds) >= 2**63:
        raise ValueError(f"seeds must be in [0, 2^63); got {text!r}")
    return seeds
