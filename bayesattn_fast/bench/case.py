"""What is measured: an op at one size, everyone who can do it, and the exact answer in float64."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .limits import Cost

OURS = "ours"
SIZES = ("tunnel", "llm", "curve", "verify")
"""What a size is for: a wind tunnel, a language model, a point of a speed-against-length curve, correctness alone."""
Results = Sequence[Tensor]
Shape = Mapping[str, int]


class Missing(Exception):
    """A peer that cannot take part, and why."""


@dataclass(frozen=True)
class Draw:
    """Fresh random inputs: where they lie, of what dtype, and from which seed; peers: whether others take part."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator
    peers: bool = True

    @classmethod
    def of(cls, seed: int, device: torch.device, dtype: torch.dtype, *, peers: bool = True) -> "Draw":
        return cls(device, dtype, torch.Generator().manual_seed(seed), peers)

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1)."""
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)

    def simplex(self, *shape: int) -> Tensor:
        """Rows that sum to 1, none of them near 0."""
        rows = torch.rand(shape, generator=self.generator, dtype=torch.float64) + 0.1
        return (rows / rows.sum(-1, keepdim=True)).to(self.device, self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """int64 in [0, high)."""
        return torch.randint(high, shape, generator=self.generator).to(self.device)


@dataclass(frozen=True)
class Contender:
    """One way to do the work: run makes one call and returns the results, one tensor or a tuple of them.

    exact: which part of the exact results these are compared with, by default all of them. share: the part of the
    case's work that one call does. looser: how many times the case's tolerance it may err, for peers that keep
    intermediates in a lower precision than ours.
    """

    run: Callable[[], Tensor | tuple[Tensor, ...]]
    exact: Callable[[Results], Results] | None = None
    share: float = 1.0
    looser: float = 1.0

    def errors(self, exact: Results) -> list[float]:
        """The relative error of every result of one call."""
        return relative_errors(as_tuple(self.run()), self.exact(exact) if self.exact else exact)

    def error(self, exact: Results) -> float:
        """The largest relative error of one call."""
        return max(self.errors(exact))


@dataclass(frozen=True)
class Prepared:
    """Everyone who takes part, ours first under "ours"; the exact results; and who does not, with the reason."""

    contenders: dict[str, Contender]
    exact: Callable[[], Results]
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """An op at one size.

    shape: letters to sizes; checked: the sizes that are smaller when results are compared with float64.
    amount: how many `unit` one call works on. tolerance: largest relative error ‖x − exact‖ / ‖exact‖ of any result.
    curve: where this is one point of a speed-against-length curve, the letter of the length. results: their names.
    """

    op: str
    work: str
    shape: Shape
    dtype: torch.dtype
    size: str
    unit: str
    amount: int
    cost: Cost
    tolerance: float
    prepare: Callable[[Draw, Shape], Prepared]
    checked: Shape = field(default_factory=dict)
    curve: str = ""
    devices: tuple[str, ...] = ("cpu", "cuda")
    results: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """The dtype's name: "float32"."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def sizes(self) -> str:
        """ "heads 1024, N 40, D 32"."""
        return ", ".join(f"{letter} {value}" for letter, value in self.shape.items())

    @property
    def name(self) -> str:
        """What tells the case from all others."""
        return f"{self.op} {self.work}, {self.precision}: {self.sizes}"


def join(contenders: dict[str, Contender], missing: dict[str, str], name: str, make: Callable[[], Contender]) -> None:
    """Add a peer, or why it is not there: whatever its import raises is the reason, in one line."""
    try:
        contenders[name] = make()
    except (Missing, ImportError, OSError, AttributeError, RuntimeError) as error:
        missing[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]


def as_tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One tensor as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def relative_errors(found: Results, exact: Results) -> list[float]:
    """‖x − e‖ / ‖e‖ of every result, in float64; infinite where a shape differs or a number is not finite."""
    return [_relative_error(x, e) for x, e in zip(found, exact, strict=True)]


def _relative_error(x: Tensor, e: Tensor) -> float:
    x, e = x.detach().to("cpu", torch.float64), e.detach().to("cpu", torch.float64)
    if x.shape != e.shape:
        return float("inf")
    size = float(e.norm())
    error = float((x - e).norm()) / (size if size > 0 else 1.0)
    return error if error == error else float("inf")
