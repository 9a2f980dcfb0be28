"""The papers' tables and figures by command: cells of training, analyses of them, and one page of verdicts."""

from .cells import SCALES, Cell, cells
from .trainer import train_missing

__all__ = ["SCALES", "Cell", "cells", "train_missing"]
