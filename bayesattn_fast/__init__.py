"""Kernels and wind tunnels for studying how sequence models learn exact Bayesian inference.

import bayesattn_fast as ba
run = ba.train("bijection", seeds=3)          # trains, scores against the exact posterior, keeps the run
print(run.evaluation.overall["kl"])           # bits, per seed
print(run.report)                             # the page
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Run, train
    from .backends import backend
    from .ops.attention import attention, attention_dynamics, record_dynamics, scaled_dot_product_attention

__version__ = "0.1.0"

# Loaded on first use: a kernel's user does not wait for the training code, nor the other way round.
_HOMES = {
    "Run": "api",
    "attention": "ops.attention",
    "attention_dynamics": "ops.attention",
    "backend": "backends",
    "record_dynamics": "ops.attention",
    "scaled_dot_product_attention": "ops.attention",
    "train": "api",
}
__all__ = [
    "Run",
    "__version__",
    "attention",
    "attention_dynamics",
    "backend",
    "record_dynamics",
    "scaled_dot_product_attention",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
