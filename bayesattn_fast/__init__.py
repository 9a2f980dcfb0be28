"""Kernels and wind tunnels for studying how sequence models learn exact Bayesian inference.

import bayesattn_fast as ba
run = ba.train("bijection", seeds=3)          # trains, scores against the exact posterior, keeps the run
print(run.evaluation.summary("kl"))           # bits, with a 95 % interval over seeds
print(run.report)                             # the page
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import analysis, evaluation, integrations, models, posteriors, statistics, training, tunnels  # noqa: F401
    from .api import Run, train
    from .backends import backend
    from .models import register_model
    from .ops.attention import attention, attention_dynamics, record_dynamics, scaled_dot_product_attention
    from .ops.causal_conv1d import causal_conv1d_fn
    from .ops.selective_scan import selective_scan_fn, selective_state_update
    from .ops.single_head import attention_cross_entropy, single_head_step, train_single_head
    from .patching import patch, unpatch
    from .posteriors import (
        bijection_predictive,
        hmm_filter,
        markov_predictive,
        recall_predictive,
        regression_predictive,
    )
    from .tunnels import register_tunnel

__version__ = "0.1.0"

# Loaded on first use: a kernel's user does not wait for the training code, nor the other way round.
_HOMES = {
    "Run": "api",
    "attention": "ops.attention",
    "attention_cross_entropy": "ops.single_head",
    "attention_dynamics": "ops.attention",
    "backend": "backends",
    "bijection_predictive": "posteriors",
    "causal_conv1d_fn": "ops.causal_conv1d",
    "hmm_filter": "posteriors",
    "markov_predictive": "posteriors",
    "patch": "patching",
    "recall_predictive": "posteriors",
    "record_dynamics": "ops.attention",
    "register_model": "models",
    "register_tunnel": "tunnels",
    "regression_predictive": "posteriors",
    "scaled_dot_product_attention": "ops.attention",
    "selective_scan_fn": "ops.selective_scan",
    "selective_state_update": "ops.selective_scan",
    "single_head_step": "ops.single_head",
    "train": "api",
    "train_single_head": "ops.single_head",
    "unpatch": "patching",
}
# Packages whose own __all__ is public too: `bayesattn_fast.tunnels` needs no import of its own.
_PACKAGES = ("analysis", "evaluation", "integrations", "models", "posteriors", "statistics", "training", "tunnels")
__all__ = [
    "Run",
    "__version__",
    "attention",
    "attention_cross_entropy",
    "attention_dynamics",
    "backend",
    "bijection_predictive",
    "causal_conv1d_fn",
    "hmm_filter",
    "markov_predictive",
    "patch",
    "recall_predictive",
    "record_dynamics",
    "register_model",
    "register_tunnel",
    "regression_predictive",
    "scaled_dot_product_attention",
    "selective_scan_fn",
    "selective_state_update",
    "single_head_step",
    "train",
    "train_single_head",
    "unpatch",
]


def require_torch(oldest: tuple[int, int] = (2, 11)) -> None:
    """ImportError with one sentence where PyTorch is missing or older than `oldest`; does not import it."""
    from importlib.metadata import PackageNotFoundError, version

    wanted = f"bayesattn-fast needs torch >= {oldest[0]}.{oldest[1]}"
    try:
        found = version("torch")
    except PackageNotFoundError:
        raise ImportError(f"{wanted}, and there is none: pip install torch") from None
    if tuple(int(part) for part in found.split(".")[:2]) < oldest:
        raise ImportError(f"{wanted}, found {found}: pip install --upgrade torch")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        require_torch()
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_torch()
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
