"""Timings in turns, for the studies of this folder; they are those of `bayesattn bench`."""

from bayesattn_fast.bench.environment import machine
from bayesattn_fast.bench.timing import Timing, interleaved

__all__ = ["Timing", "interleaved", "machine"]
