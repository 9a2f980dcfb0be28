"""What the Triton kernels of a head are told about one call: sizes, operands, where results go, and the tiles.

Everything is a tensor of (E, B, N, …): a program finds its seed and sequence, and walks over blocks of positions. Rows
(queries) and columns (keys) come in blocks of the same size. float32 throughout, products in full precision ("ieee").
"""

# mypy: allow-untyped-defs
# The arguments of a jit function are tiles and views, which have no types of Python's.

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .._triton.launch import Resources
from .._triton.views import Matrices, Vectors, load_tile, matrices, vectors

WIDEST = 64
"""Largest head, value and class count, and input size of the trainer, that the kernels take."""


class Config(NamedTuple):
    """What is known when a kernel is compiled: options, sizes, and the tiles that hold them."""

    causal: bool
    statistics: bool
    soft: bool
    inputs: int
    head: int
    values: int
    classes: int
    block_x: int
    block_d: int
    block_v: int
    block_c: int
    block: int


class Problem(NamedTuple):
    """Sizes at run time; share: what a position contributes to the mean loss, 1/(B·N)."""

    batch: int
    length: int
    scale: float
    share: float


class Operands(NamedTuple):
    """q, k (E, B, N, Dk), v (E, B, N, Dv), w_out (E, 1, Dv, C), targets (E, B, N) or (E, B, N, C)."""

    q: Matrices
    k: Matrices
    v: Matrices
    w_out: Matrices
    targets: Matrices | Vectors


class Results(NamedTuple):
    """Gradients; dw_out (E, B, blocks · Dv, C) is the share of each block of rows. u, lse and expected are what the
    rows leave for the columns; nll (E, B, N)."""

    dq: Matrices
    dk: Matrices
    dv: Matrices
    dw_out: Matrices
    u: Matrices
    lse: Vectors
    expected: Vectors
    nll: Vectors


class Extras(NamedTuple):
    """Statistics beyond those that every call needs, (E, B, N), in the order and meaning of reference.Statistics."""

    entropy: Vectors
    variance: Vectors
    score_gradient: Vectors
    largest: Vectors
    predictive_entropy: Vectors
    argmax: Vectors
    predicted: Vectors
    mass: Vectors
    signed: Vectors
    absolute: Vectors


class Tile(NamedTuple):
    """block positions at a time."""

    block: int
    warps: int


# By the largest padded size. Chosen with the compiler: the largest that does not spill for compute capability 8.0, 9.0
# and 10.0, with statistics and both kinds of targets.
TILES = {16: Tile(32, 4), 32: Tile(32, 4), 64: Tile(16, 8)}


def padded(size: int) -> int:
    """The tile that holds `size`: a power of two, at least 16, the least side of a product on the device."""
    return max(16, triton.next_power_of_2(size))


def takes(*sizes: int) -> bool:
    """Whether the kernels have tiles for these head, value, class and input sizes."""
    return max(sizes) <= WIDEST


def configure(
    q: Tensor, v: Tensor, w_out: Tensor, targets: Tensor, causal: bool, statistics: bool, inputs: int = 1
) -> tuple[Config, Resources]:
    """Options and tiles of a call. Raises ValueError for a size beyond WIDEST."""
    head, values, classes = q.shape[3], v.shape[3], w_out.shape[2]
    if not takes(inputs, head, values, classes):
        sizes = f"Dx {inputs}, Dk {head}, Dv {values}, C {classes}"
        raise ValueError(f"the Triton kernels of single_head take sizes up to {WIDEST}; got {sizes}")
    blocks = [padded(size) for size in (inputs, head, values, classes)]
    tile = TILES[max(blocks)]
    soft = targets.dim() == 4
    config = Config._make([causal, statistics, soft, inputs, head, values, classes, *blocks, tile.block])
    return config, Resources(tile.warps, 1)


def uncrowded(resources: Resources) -> Resources:
    """For a program that does a whole step: ptxas would spill a few registers so that one more fits a multiprocessor,
    and does not where it is told how many it may take."""
    return resources._replace(registers=255)


def target_view(targets: Tensor) -> Matrices | Vectors:
    """Classes or weights of classes as a kernel argument."""
    return matrices(targets) if targets.dim() == 4 else vectors(targets)


@triton.jit
def product(a, b):
    """a @ b in float32, in full precision."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def scaled_queries(operands, e, b, rows, problem, config: tl.constexpr):
    """scale · q of a block of rows; the scores need no scale later."""
    q = load_tile(operands.q, e, b, rows, problem.length, config.head, config.block_d)
    return q * problem.scale
