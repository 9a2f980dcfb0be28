"""Kernels and wind tunnels for studying how sequence models learn exact Bayesian inference.

    import bayesattn_fast as ba
    run = ba.train("bijection", seeds=3)          # trains, scores against the exact posterior, keeps the run
    print(run.evaluation.overall["kl"])           # bits, per seed
    print(run.report)                             # the page
"""

from .api import Run, train
from .backends import backend

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "backend", "train"]
