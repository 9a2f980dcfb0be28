"""Attention, forward + backward: ours beside torch's, in float32 and bfloat16, with and without statistics; memory.

    python -m bench.bench_attention --json attention.json        all of it, a few minutes
    python -m bench.bench_attention --quick                      the first two shapes, no memory

Every contender is checked against float64 before it is timed. "torch" is F.scaled_dot_product_attention with autograd;
"dense" is autograd through written-out matrices that returns the statistics ours returns.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesattn_fast.ops.attention import attention, attention_dynamics

from .interleaved import interleaved, machine

Three = tuple[Tensor, Tensor, Tensor]
# Sequences × heads, positions, head size; and how many times faster than torch ours means to be, by dtype.
TARGETS = {
    (1024, 40, 32): {"float32": 2.5, "bfloat16": 6.0},
    (4096, 40, 16): {"float32": 2.5, "bfloat16": 6.0},
    (1024, 128, 32): {"float32": 1.5, "bfloat16": 6.0},
    (256, 512, 64): {"float32": 1.0},
}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
# torch keeps α in bfloat16 inside.
TOLERANCE_OF_TORCH = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
HEADS = 4
LENGTHS = (256, 1024, 4096)


def inputs(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Three, Tensor]:
    """q, k, v that require gradients, and the upstream gradient."""
    heads, length, width = shape
    generator = torch.Generator().manual_seed(0)
    q, k, v, u = (torch.randn(heads // HEADS, HEADS, length, width, generator=generator).to(dtype) for _ in range(4))
    return (q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), u


def ours(qkv: Three, u: Tensor) -> tuple[Tensor, ...]:
    o = attention(*qkv)
    return (o, *torch.autograd.grad(o, qkv, u))


def ours_with_statistics(qkv: Three, u: Tensor) -> tuple[Tensor, ...]:
    d = attention_dynamics(*qkv, u)
    return d.o, d.dq, d.dk, d.dv, *d.forward[:3], *d.rows, *d.columns


def of_torch(qkv: Three, u: Tensor) -> tuple[Tensor, ...]:
    o = F.scaled_dot_product_attention(*qkv, is_causal=True)
    return (o, *torch.autograd.grad(o, qkv, u))


def dense_autograd(qkv: Three, u: Tensor) -> tuple[Tensor, ...]:
    """Matrices written out, gradients by autograd, and every statistic from the matrices."""
    q, k, v = qkv
    length = q.shape[2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    score = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(hidden, -math.inf)
    weight = score.softmax(-1)
    o = weight @ v
    score_gradient, dq, dk, dv = torch.autograd.grad(o, (score, q, k, v), u)
    with torch.no_grad():
        lse = score.logsumexp(-1)
        entropy = lse - (weight * score.masked_fill(hidden, 0)).sum(-1)
        compatibility = u @ v.mT
        expected = (weight * compatibility).sum(-1)
        variance = (weight * (compatibility - expected[..., None]).square()).sum(-1)
        rows = expected, variance, score_gradient.square().sum(-1)
        columns = weight.sum(-2), score_gradient.sum(-2), score_gradient.abs().sum(-2), dv.norm(dim=-1)
        return o, dq, dk, dv, lse, entropy, weight.amax(-1), *rows, *columns


def error(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    """The largest relative error of all results."""
    return max(
        float((x.detach().double() - e.detach()).norm() / e.detach().norm()) for x, e in zip(found, exact, strict=False)
    )


def check(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """A few heads of the shape against dense float64."""
    qkv, u = inputs((2 * HEADS, *shape[1:]), dtype)
    q, k, v = (x.detach().double().requires_grad_() for x in qkv)
    exact = dense_autograd((q, k, v), u.double())
    contenders = {"ours": ours, "ours, statistics": ours_with_statistics, "torch": of_torch}
    for name, run in contenders.items():
        allowed = TOLERANCE_OF_TORCH[dtype] if name == "torch" else TOLERANCE[dtype]
        if (found := error(run(qkv, u), exact)) > allowed:
            raise SystemExit(f"{name} at {shape}, {dtype}: relative error {found:.2g} > {allowed:.2g}")


def speed(shapes: list[tuple[int, int, int]], rounds: int) -> list[dict[str, object]]:
    """Every contender at every shape, in turns; × is the time over ours without statistics."""
    rows: list[dict[str, object]] = []
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            check(shape, dtype)
            qkv, u = inputs(shape, dtype)
            kind = str(dtype).removeprefix("torch.")
            contenders = {"ours": ours, "ours, statistics": ours_with_statistics, "torch": of_torch}
            if dtype == torch.float32:
                contenders["dense"] = dense_autograd
            runs = {name: _call(run, qkv, u) for name, run in contenders.items()}
            timings = interleaved(runs, rounds=rounds, budget_s=40)
            base = timings["ours"].median
            for name, timing in timings.items():
                target = TARGETS[shape].get(kind) if name == "torch" else None
                rows.append(
                    {"shape": shape, "dtype": kind, "name": name, **asdict(timing), "times_ours": timing.median / base}
                )
                note = "" if target is None else f"  (wanted ×{target})"
                print(
                    f"{shape!s:16} {kind:9} {name:17} {timing.median:9.2f} ms [{timing.p20:.2f}, {timing.p80:.2f}]"
                    f"  ×{timing.median / base:.2f}{note}",
                    flush=True,
                )
            if "dense" in timings:
                ratio = timings["dense"].median / timings["ours, statistics"].median
                print(f"{'':26} dense / ours with statistics ×{ratio:.1f}")
    return rows


def _call(run: Callable[[Three, Tensor], object], qkv: Three, u: Tensor) -> Callable[[], object]:
    return lambda: run(qkv, u)


def memory_child(length: int) -> None:
    """Print the peak growth of this process during forward + backward with statistics, above inputs and outputs."""

    def kib(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    qkv, u = inputs((HEADS, 64, 64), torch.float32)
    ours_with_statistics(qkv, u)
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark anew
    before = kib("VmRSS")
    qkv, u = inputs((HEADS * 8, length, 64), torch.float32)
    results = ours_with_statistics(qkv, u)
    size = sum(t.numel() * t.element_size() for t in (*qkv, u, *results))
    print(json.dumps({"peak": (kib("VmHWM") - before) * 1024, "inputs_and_outputs": size}))


def memory() -> list[dict[str, object]]:
    """Peak memory at every length, each in a process of its own."""
    rows: list[dict[str, object]] = []
    for length in LENGTHS:
        command = [sys.executable, "-m", "bench.bench_attention", "--memory-child", str(length)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        each = found["peak"] / length
        matrix = 4 * HEADS * 8 * length**2
        rows.append({"length": length, **found, "bytes_per_position": each})
        print(
            f"32 heads of 64, N = {length:5}: peak {found['peak'] / 2**20:7.1f} MiB, {each / 2**10:.1f} KiB a position,"
            f" ×{found['peak'] / found['inputs_and_outputs']:.2f} of inputs and outputs; one N × N matrix of each head "
            f"would take {matrix / 2**20:.0f} MiB"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="the first two shapes, no memory")
    parser.add_argument("--shapes", type=int, nargs="+", help="which of the four shapes, from 0; no memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory-child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_child:
        memory_child(options.memory_child)
        return
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    chosen = options.shapes or ([0, 1] if options.quick else range(len(TARGETS)))
    shapes = [list(TARGETS)[i] for i in chosen]
    result = {
        "machine": machine(),
        "speed": speed(shapes, options.rounds),
        "memory": [] if options.quick or options.shapes else memory(),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
