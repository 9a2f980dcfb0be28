"""Every launcher keeps the promises of its schema and its fake on a card."""

import pytest
import torch

from tests.ops.custom_ops import NAMES, check

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_launcher_passes_opcheck_in_every_layout(name: str) -> None:
    assert check(name, torch.device("cuda")) >= 4
