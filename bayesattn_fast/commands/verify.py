"""bayesattn verify: every op on this device against float64, each error beside its limit."""

import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from .. import backends
from .parsing import UsageError, device_of, known, parse
from .results import print_json, print_tables

if TYPE_CHECKING:
    from ..bench.record import Row

EXAMPLES = """examples:
  bayesattn verify
  bayesattn verify attention --device cuda
  bayesattn verify --backend reference --json"""


@dataclass(frozen=True)
class Verify:
    """Every op on this device against float64: results, gradients and statistics, in every precision, at a few shapes.

    Random draws must equal the reference's bit for bit. Exit code 1: an error exceeds its limit, or something raised.
    """

    ops: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which ops; all where none is named."""
    device: str = ""
    """cpu, cuda or cuda:N; the GPU where there is one and nothing is named."""
    backend: Literal["auto", "reference", "cpu", "triton"] | None = None
    """Which implementation; what BAYESATTN_BACKEND says, or auto, unless given."""
    seed: int | None = None
    """Seed of the inputs; drawn anew unless given."""
    json: bool = False
    """Print the rows as JSON."""


def main(words: list[str]) -> int:
    from ..bench.cases import VERIFIED, cases_of
    from ..bench.verify import as_dict, faults, verify

    flags = parse(Verify, words, prog="bayesattn verify", description=f"{Verify.__doc__}\n\n{EXAMPLES}")
    for op in flags.ops:
        known(op, VERIFIED, "op")
    device = device_of(flags.device)
    seed = int.from_bytes(os.urandom(4), "little") if flags.seed is None else flags.seed
    started = time.perf_counter()
    with backends.backend(flags.backend) if flags.backend else nullcontext():
        rows = verify(cases_of(flags.ops, "verify"), device, seed)
        in_force = backends.current()
    seconds, wrong = time.perf_counter() - started, faults(rows)
    if not any(row.served for row in rows):
        raise UsageError(rows[0].reason)
    if flags.json:
        about = {"device": str(device), "backend": in_force, "seed": seed, "seconds": round(seconds, 1)}
        print_json({**about, "wrong": len(wrong), "rows": [as_dict(row) for row in rows]})
    else:
        _print(rows, wrong, f"{len(rows)} cases on {device} in {seconds:.0f} s, seed {seed}")
    return 1 if wrong else 0


def _print(rows: "list[Row]", wrong: "list[Row]", summary: str) -> None:
    from ..bench.record import MISSING
    from ..bench.verify import table

    print_tables(table(rows))
    for reason in dict.fromkeys(row.reason for row in rows if row.status == MISSING):
        print(f"not served: {reason}")
    for row in wrong:
        print(f"{row.status}: {row.op} {row.work}, {row.precision}: {row.sizes}: {row.reason}")
    print(f"{summary}: " + (f"{len(wrong)} wrong" if wrong else "all within their limits"))
    sys.stdout.flush()
