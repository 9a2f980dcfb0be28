"""The parts of bench/gpu.sh, each a process: `bayesattn verify` and `bench` for a machine that has little installed.

    python -m bench.card verify --device cuda --out results           every op against float64; verify.json
    python -m bench.card bench --device cuda --out part attention     some ops beside their peers; results.json
    python -m bench.card join --out results part1 part2               one results.json, page and pictures; a short table

Torch, triton and numpy suffice; where matplotlib or jinja2 are missing there is no page.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from bayesattn_fast.bench import record as records
from bayesattn_fast.bench.case import OURS
from bayesattn_fast.bench.cases import cases_of
from bayesattn_fast.bench.record import FAILED, REFUSED, TIMED, Record, Row
from bayesattn_fast.bench.runner import Settings, run
from bayesattn_fast.bench.verify import as_dict, faults, verify
from bayesattn_fast.report.numbers import number
from bayesattn_fast.storage import write_json

SEEDS_TARGET = 20
"""How many times faster 512 packed seeds are meant to train than one after another."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("verify", "bench", "join"))
    parser.add_argument("words", nargs="*", help="ops, or the folders to join")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="all")
    parser.add_argument("--budget", type=float, default=0.5)
    options = parser.parse_intermixed_args()
    device = torch.device(options.device)
    if options.part == "verify":
        return _verify(options.words, device, options.out)
    if options.part == "bench":
        return _bench(options.words, device, options.out, options.sizes, options.budget)
    return _join([Path(word) for word in options.words], options.out)


def _verify(ops: list[str], device: torch.device, out: Path) -> int:
    seed = int.from_bytes(os.urandom(4), "little")
    rows = verify(cases_of(ops, "verify"), device, seed, on_case=lambda row: print(_checked(row)))
    write_json(out / "verify.json", {"device": str(device), "seed": seed, "rows": [as_dict(row) for row in rows]})
    print(f"{len(rows)} cases, {len(faults(rows))} wrong")
    return 1 if faults(rows) else 0


def _checked(row: Row) -> str:
    about = f"{row.op} {row.work}, {row.precision}: {row.sizes} ({row.served})"
    return f"{row.status}: {about}: {row.reason or f'{number(row.error)} of {number(row.tolerance)}'}"


def _bench(ops: list[str], device: torch.device, out: Path, sizes: str, budget: float) -> int:
    def on_case(done: int, count: int, name: str, found: Record) -> None:
        *_, rows = found.cases()
        print(f"[{done}/{count}] {name}", *(f"  {_timed(row)}" for row in rows), sep="\n", flush=True)
        records.save(found, out)  # now: the next case may end the process

    found = run(cases_of(ops, sizes), Settings(device, budget_s=budget), on_case)
    return 1 if found.faults else 0


def _timed(row: Row) -> str:
    return f"{row.contender}: {number(row.median)} ms" if row.status == TIMED else f"{row.contender}: {row.reason}"


def _join(folders: list[Path], out: Path) -> int:
    parts = [records.load(folder) for folder in folders if (folder / "results.json").exists()]
    if not parts:
        print("nothing was timed")
        return 1
    first = parts[0]
    joined = Record(first.environment, first.limits, first.settings, tuple(row for part in parts for row in part.rows))
    records.save(joined, out)
    for line in (*short_table(joined), *packed_training(joined)):
        print(line)
    try:
        from bayesattn_fast.bench.page import write_page

        write_page(joined, out)
    except ImportError as error:
        print(f"no page and no pictures: {error}")
    return 0


def short_table(record: Record) -> Iterator[str]:
    """A line a case: ours in milliseconds, its share of the limit, and how many times as long each peer takes."""
    found = record.environment
    on = found["gpu"]["name"] if "gpu" in found else found["processor"]
    yield f"{on}, {record.settings['clock']}, {found['date']}"
    for ours, *peers in record.cases():
        name = f"{ours.op} {ours.work}, {ours.precision}: {ours.sizes}"
        if ours.contender != OURS or ours.status in (FAILED, REFUSED):
            yield f"{name}: {ours.status}: {ours.reason}"
            continue
        share = f"{ours.of_limit:.0%} of {ours.limit}" if ours.of_limit else ""
        others = ", ".join(f"{row.contender} ×{number(row.ratio, 2)}" for row in peers if row.status == TIMED)
        yield f"{name}: {number(ours.median)} ms, {share}; {others}{' (noisy)' if ours.noisy else ''}"


def packed_training(record: Record) -> Iterator[str]:
    """Seeds·steps a second of packed transformers beside the same seeds trained one after another."""
    for rows in record.cases():
        rates = {row.contender: row.per_second for row in rows if row.status == TIMED}
        if rows[0].op != "training" or OURS not in rates:
            continue
        packed, alone = rates[OURS], rates.get("ours, one by one") or rates[OURS]
        assert packed is not None
        assert alone is not None
        target = f" (target ×{SEEDS_TARGET})" if "E 512," in rows[0].sizes else ""
        loop = rates.get("plain loop")
        beside = f"one after another {number(alone)}" + (f", plain loop {number(loop)}" if loop else "")
        times = f"×{number(packed / alone)}{target}"
        yield f"packed training, {rows[0].sizes}: {number(packed)} seeds·steps/s, {beside}: {times}"


if __name__ == "__main__":
    sys.exit(main())
