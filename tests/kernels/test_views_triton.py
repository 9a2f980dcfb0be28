"""How the Triton kernels address a tensor."""

import pytest
import torch

from tests.interpreter import only_result

views = pytest.importorskip("bayesattn_fast.kernels._triton.views")


@pytest.mark.parametrize(
    "strides", [(2**40, 2**33, 2**31 - 1, 1), (70_000, 70_000, 300_000_000, 3), (5, 7, 1, 250_000_000)]
)
def test_offsets_beyond_two_to_the_31_do_not_wrap(strides: tuple[int, int, int, int]) -> None:
    batch, head = 70_000, 11
    rows, columns = torch.arange(16)[:, None], torch.arange(16)
    elements = batch * strides[0] + head * strides[1] + rows * strides[2] + columns * strides[3]
    assert elements.max() > 2**31
    assert torch.equal(only_result("tests.kernels.pointers", "byte_offsets", strides, batch, head), 2 * elements)


@pytest.mark.parametrize(("row", "unit"), [(32, 16), (24, 8), (20, 4), (30, 2), (15, 1)])
def test_the_alignment_told_to_the_compiler_divides_every_row(row: int, unit: int) -> None:
    assert views.matrices(torch.zeros(2, 3, 16, row)).unit.value == unit
    # An expanded head has stride 0, which every unit divides.
    assert views.matrices(torch.zeros(2, 1, 16, row).expand(2, 3, -1, -1)).unit.value == unit
