"""One case after another: compare with float64, and only what is right is warmed up, timed in turns, and weighed.

A case that raises is a row that says so, and the next one goes on.
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from .. import backends
from .case import OURS, Case, Contender, Draw, as_tuple
from .environment import environment
from .limits import Limits, measure_limits
from .memory import peak_bytes
from .record import FAILED, MISSING, REFUSED, TIMED, Record, Row
from .timing import Measure, Run, choose, interleaved

OnCase = Callable[[int, int, str, Record], None]
"""Called after each case: how many are done, of how many, its name, and the record so far."""


@dataclass(frozen=True)
class Settings:
    """threads: of torch, for the length of the run. budget_s: seconds of timing a case. rounds: most samples each.

    seed: of all inputs; drawn anew for each run unless given.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 1
    budget_s: float = 5.0
    rounds: int = 25
    seed: int | None = None


def run(cases: Iterable[Case], settings: Settings, on_case: OnCase | None = None) -> Record:
    """Every case that `settings.device` can take, in order."""
    cases = [case for case in cases if settings.device.type in case.devices]
    seed = int.from_bytes(os.urandom(4), "little") if settings.seed is None else settings.seed
    with _threads(settings.threads):
        threads = torch.get_num_threads()
        clock, measure = choose(settings.device, threads)
        limits = measure_limits(settings.device, threads)
        kept = {"clock": clock, "seed": seed, "budget_s": settings.budget_s, "rounds": settings.rounds}
        record = Record(environment(settings.device), limits.to_dict(), kept)
        for done, case in enumerate(cases, 1):
            rows = measure_case(case, settings, seed, limits, measure)
            record = replace(record, rows=(*record.rows, *rows))
            if on_case:
                on_case(done, len(cases), case.name, record)
    return record


def measure_case(case: Case, settings: Settings, seed: int, limits: Limits, measure: Measure) -> list[Row]:
    """The rows of one case: ours, then the peers."""
    try:
        return list(_rows(case, settings, seed, limits, measure))
    except Exception as error:
        if isinstance(error, MemoryError | RuntimeError | ValueError | TypeError | AssertionError | ArithmeticError):
            return [Row.of(case, OURS, FAILED, reason=one_line(error))]
        raise
    finally:
        gc.collect()
        if settings.device.type == "cuda":
            torch.cuda.empty_cache()


def _rows(case: Case, settings: Settings, seed: int, limits: Limits, measure: Measure) -> Iterator[Row]:
    checked = check(case, settings.device, seed)
    ours = checked.rows.get(OURS)
    if ours is not None:  # nothing is timed beside a kernel that is wrong
        yield ours
        return
    yield from checked.rows.values()
    prepared = case.prepare(Draw.of(seed + 1, settings.device, case.dtype), case.shape)
    contenders = {name: prepared.contenders[name] for name in checked.errors}
    if reason := _disagreement(case, contenders):
        yield Row.of(case, OURS, REFUSED, reason=reason, error=checked.errors[OURS])
        return
    runs: dict[str, Run] = {name: contender.run for name, contender in contenders.items()}
    timings = interleaved(runs, settings.rounds, settings.budget_s, measure=measure)
    floor = limits.floor(case.cost, case.precision)
    ours_ms = timings[OURS].median / contenders[OURS].share
    for name, timing in timings.items():
        yield Row.of(
            case, name, TIMED, served=served(case, settings.device) if name == OURS else "",
            error=checked.errors[name], best=timing.best, p20=timing.p20, median=timing.median, p80=timing.p80,
            runs=timing.runs, share=contenders[name].share, ratio=timing.median / contenders[name].share / ours_ms,
            floor_ms=1e3 * floor.seconds, limit=floor.limit, samples=timing.samples,
            peak_bytes=peak_bytes(runs[name], settings.device),
        )  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """errors: of everyone who is right, by name. rows: those who are not, or are not there, and why."""

    errors: dict[str, float]
    rows: dict[str, Row]


def check(case: Case, device: torch.device, seed: int, *, peers: bool = True, full: bool = False) -> Checked:
    """Everyone's results against float64, or ours alone, at the case's checked sizes or at its full ones."""
    shape = case.shape if full else {**case.shape, **case.checked}
    prepared = case.prepare(Draw.of(seed, device, case.dtype, peers=peers), shape)
    exact = prepared.exact()
    errors: dict[str, float] = {}
    rows = {name: Row.of(case, name, MISSING, reason=reason) for name, reason in prepared.missing.items()}
    for name, contender in prepared.contenders.items():
        if name != OURS and not peers:
            continue
        allowed = case.tolerance * contender.looser
        try:
            each = contender.errors(exact)
        except Exception as error:
            rows[name] = Row.of(case, name, FAILED, reason=one_line(error))
            continue
        if max(each) <= allowed:
            errors[name] = max(each)
        else:
            reason = f"relative error {max(each):.2g}{_of_what(case, each)}, allowed {allowed:.2g}"
            rows[name] = Row.of(case, name, REFUSED, reason=reason, error=max(each))
    return Checked(errors, rows)


def _of_what(case: Case, errors: list[float]) -> str:
    """The name of the result that errs most, " of dk", where the case names its results."""
    named = dict(zip(errors, case.results, strict=False))
    return f" of {named[max(errors)]}" if len(errors) == len(case.results) else ""


def _disagreement(case: Case, contenders: dict[str, Contender]) -> str:
    """What is wrong at the full size, where float64 is too large to be had: ours against the first whole peer."""
    whole = [(name, peer) for name, peer in contenders.items() if name != OURS and peer.share == 1.0]
    if not whole or not case.checked:
        return ""
    name, peer = whole[0]
    found = contenders[OURS].error(as_tuple(peer.run()))
    allowed = case.tolerance * (contenders[OURS].looser + peer.looser)
    return "" if found <= allowed else f"differs from {name} by {found:.2g} at full size, allowed {allowed:.2g}"


def served(case: Case, device: torch.device) -> str:
    """Which implementation serves the op; empty for what is not an op, such as training."""
    return backends.resolve(case.op, device) if case.op in backends.ops() else ""


def one_line(error: BaseException) -> str:
    """An exception as a reason: its kind and its message."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch with `count` threads, 0 for as many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
