"""Every launcher keeps the promises of its schema and its fake; tests/cuda repeats this on a card."""

import pytest
import torch

from tests.ops.custom_ops import NAMES, check, registered


def test_no_launcher_is_left_out() -> None:
    assert registered() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_launcher_passes_opcheck_in_every_layout(name: str) -> None:
    assert check(name, torch.device("cpu")) >= 4
