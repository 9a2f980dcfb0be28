"""Settings that are known to work: `quick` takes minutes on two CPU cores, `paper` follows Paper I on a GPU."""

from dataclasses import replace

from .. import tunnels
from ..models import ModelConfig
from .config import RunConfig, TrainingConfig

PRESETS = ("quick", "paper")

_BIJECTION_PAPER = TrainingConfig(
    steps=150_000, batch=64, lr=1e-3, warmup=1000, schedule="constant", eval_every=10_000, checkpoint_every=5_000
)
_HMM_PAPER = TrainingConfig(
    steps=100_000, batch=64, lr=3e-4, warmup=1000, targets="soft", eval_every=10_000, checkpoint_every=5_000
)

# A short memory of squared gradients (beta2 0.98) keeps these large rates stable.
_QUICK = TrainingConfig(lr=2e-3, beta2=0.98, batch=32)

_RECIPES: dict[tuple[str, str], tuple[ModelConfig, TrainingConfig]] = {
    ("bijection", "quick"): (ModelConfig(), replace(_QUICK, steps=2500, lr=3e-3, batch=64)),
    ("hmm", "quick"): (ModelConfig(layers=3), replace(_QUICK, steps=2500, targets="soft")),
    ("regression", "quick"): (ModelConfig(layers=3), replace(_QUICK, steps=2500)),
    ("recall", "quick"): (ModelConfig(), replace(_QUICK, steps=2000)),
    ("markov", "quick"): (ModelConfig(), replace(_QUICK, steps=600)),
    ("bijection", "paper"): (ModelConfig(layers=6, d_model=192, heads=6), _BIJECTION_PAPER),
    ("hmm", "paper"): (ModelConfig(layers=9, d_model=256, heads=8), _HMM_PAPER),
    ("regression", "paper"): (ModelConfig(layers=6, d_model=192, heads=6), _BIJECTION_PAPER),
    ("recall", "paper"): (ModelConfig(layers=6, d_model=192, heads=6), _BIJECTION_PAPER),
    ("markov", "paper"): (
        ModelConfig(layers=4, d_model=64, heads=4),
        TrainingConfig(steps=1000, batch=1, lr=3e-4, eval_sequences=16),
    ),
}

# Of a tunnel that does not come with the package.
_OWN = {
    "quick": (ModelConfig(), _QUICK),
    "paper": (ModelConfig(layers=6, d_model=192, heads=6), _BIJECTION_PAPER),
}


def preset(tunnel: str, name: str, seeds: tuple[int, ...] = (0,)) -> RunConfig:
    """The run configuration of a preset. ValueError for an unknown tunnel or preset."""
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    sizes = tunnels.preset(tunnel, name)
    model, training = _RECIPES.get((tunnel, name), _OWN[name])
    return RunConfig(sizes, model, training, seeds)
