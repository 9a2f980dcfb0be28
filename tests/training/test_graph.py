"""Without a device to capture on, training goes on without a graph and says so."""

import pytest
import torch

from bayesattn_fast.training.graph import GradientGraph
from bayesattn_fast.tunnels.protocol import Batch

BATCH = Batch(torch.zeros(1, 2, 3), torch.zeros(1, 2, 1), torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1))


def refused(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    raise RuntimeError("operation not permitted when stream is capturing\nmore")


def test_what_cannot_be_captured_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda: refused(BATCH))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    with pytest.warns(UserWarning, match=r"runs without: operation not permitted when stream is capturing$"):
        assert GradientGraph.capture(refused, BATCH, []) is False
    assert waited == [True]
