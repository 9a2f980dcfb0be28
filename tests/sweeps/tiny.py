"""A sweep that takes seconds: 2 tunnels × 3 models, one narrow layer, a few steps."""

from typing import Any

TINY: dict[str, Any] = {
    "seeds": "0:4",
    "tunnels": ["bijection", "recall"],
    "models": ["transformer", "lstm", "mlp"],
    "settings": {
        "steps": 6,
        "batch": 4,
        "warmup": 2,
        "d_model": 8,
        "layers": 1,
        "eval_every": 3,
        "eval_sequences": 16,
        "log_every": 1,
    },
    "tunnel": {
        "bijection": {"symbols": 4, "pairs": 3},
        "recall": {"symbols": 8, "pairs": 3, "fillers": 1, "queries": 2},
    },
}


def tiny(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}
