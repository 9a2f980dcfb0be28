"""The Triton attention kernels on a card: field sizes and odd ones against float64, and the same bits every time."""

import math

import pytest
import torch
from torch import Tensor

from tests.kernels.attention_calls import CASES, TOLERANCE, Case, both_passes, compare, dense, draw

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# (B, H), N, D: what the wind tunnels train.
FIELD = {"4096 x 128 x 32": ((1024, 4), 128, 32), "1024 x 512 x 64": ((256, 4), 512, 64)}
# float64 at these sizes takes gigabytes a matrix: so many sequences at a time.
CHUNK = 32


def on_card(operands: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if tensor is None else tensor.cuda() for name, tensor in operands.items()}


def run(operands: dict[str, Tensor | None], case: Case, tf32: bool = False) -> dict[str, Tensor]:
    from bayesattn_fast.kernels.attention import backward, forward

    return both_passes(forward.forward, backward.backward, operands, case, 1 / math.sqrt(case.d), tf32=tf32)


def check(case: Case, tolerance: float, tf32: bool = False) -> None:
    """Two runs agree bit for bit, and the first sequences, the last ones and some between with float64."""
    operands = on_card(draw(case))
    results, again = run(operands, case, tf32), run(operands, case, tf32)
    for name, result in results.items():
        assert torch.equal(result, again[name]), f"{name} differs between two runs"
    b = case.heads[0]
    for start in {0, b // 2, max(b - CHUNK, 0)}:
        part = slice(start, start + CHUNK)
        piece = case._replace(
            heads=(min(CHUNK, b - start), *case.heads[1:]),
            lengths=case.lengths and case.lengths[part],
            query_lengths=case.query_lengths and case.query_lengths[part],
        )
        some = {name: None if tensor is None else tensor[part] for name, tensor in operands.items()}
        exact = dense(some, piece, 1 / math.sqrt(case.d))
        compare({name: result[part] for name, result in results.items()}, exact, tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", FIELD.values(), ids=FIELD)
@pytest.mark.parametrize("causal", [True, False])
def test_field_sizes_equal_float64_and_repeat_bit_for_bit(
    size: tuple[tuple[int, int], int, int], dtype: torch.dtype, causal: bool
) -> None:
    (b, h), n, d = size
    check(Case((b, h, h), n, n, d, d, causal, dlse=True, dtype=dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_odd_shapes_and_masks_equal_float64(case: Case, dtype: torch.dtype) -> None:
    check(case._replace(dtype=dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [1, 8, 24, 40, 64, 80, 128, 256])
def test_every_head_size_equals_float64(d: int, dtype: torch.dtype) -> None:
    check(Case((2, 4, 2), 150, 97, d, min(d, 48), True, (97, 30), (150, 149), dtype=dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("n", [1, 4, 20, 33, 64, 100])
def test_more_heads_than_a_grid_axis_holds_equal_float64(n: int) -> None:
    check(Case((10_923, 7, 7), n, n, 16, 16, True, dtype=torch.bfloat16), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("n", [40, 300])
def test_tf32_is_as_accurate_as_its_ten_bits(n: int) -> None:
    check(Case((16, 4, 4), n, n, 32, 32, True), 2e-3, tf32=True)
