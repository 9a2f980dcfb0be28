"""Large results lie on large pages where the system gives them, and are otherwise what they were."""

import resource
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesattn_fast.kernels._native.memory import LEAST, fresh

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def faults_of_filling(tensor: Tensor) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensor.fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_large_result_takes_few_page_faults() -> None:
    if not SETTING.exists() or "[madvise]" not in SETTING.read_text():
        pytest.skip("large pages are not given on request here")
    floats = 16 << 20  # 64 MiB: above what the C library keeps for itself
    plain, large = faults_of_filling(torch.empty(floats)), faults_of_filling(fresh(torch.empty(floats)))
    if plain < floats // 4096:
        pytest.skip("the allocator handed out pages that were there already, after the tests before this one")
    assert large < plain / 4


@pytest.mark.parametrize("floats", [0, 1, LEAST // 4, LEAST // 4 + 1])
def test_values_and_identity_stay(floats: int) -> None:
    tensor = torch.arange(float(floats))
    assert fresh(tensor) is tensor
    assert torch.equal(tensor, torch.arange(float(floats)))


def test_a_view_into_a_large_tensor_is_taken_too() -> None:
    tensor = torch.zeros(LEAST)[5::7]
    assert fresh(tensor) is tensor
    assert not tensor.any()
