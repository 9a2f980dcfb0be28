"""What serves a single head on a GPU: the step of given queries, keys, values, the step with projections, the trainer.

The contracts are those of reference.py, for float32 and sizes up to problem.WIDEST.
"""

from .step import attention_cross_entropy, single_head_step
from .trainer import train_single_head

__all__ = ["attention_cross_entropy", "single_head_step", "train_single_head"]
