"""The fused training step of one attention head and the trainer of many seeds, beside plain PyTorch.

    python -m bench.bench_single_head --threads 2 --json single_head.json

Peers: autograd of the model as one writes it, and the fastest that PyTorch itself has: heads padded to 16, so that
scaled_dot_product_attention takes its flash path. Every contender's gradients are checked against ours first.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesattn_fast.ops.single_head import single_head_step, train_single_head

from .interleaved import interleaved, machine

SIZES = [(20, 10), (20, 10), (20, 15), (15, 8)]
LENGTHS = (256, 2000)


def problem(seeds: int, length: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs, targets and weights N(0, 0.1²) of the sticky-chain experiment's sizes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(seeds, length, 20, generator=generator)
    targets = torch.randint(8, (seeds, length), generator=generator)
    return x, targets, [0.1 * torch.randn(seeds, *size, generator=generator) for size in SIZES]


def plain_gradients(x: Tensor, y: Tensor, weights: list[Tensor], mask: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (x @ w for w in weights[:3])
    scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(mask, -torch.inf)
    return torch.autograd.grad(F.cross_entropy(torch.softmax(scores, -1) @ v @ weights[3], y), weights)


def flash_gradients(x: Tensor, y: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    q, k, v = (x @ w for w in weights[:3])
    scale, values = q.shape[1] ** -0.5, v.shape[1]
    q, k, v = (F.pad(t, (0, 16 - t.shape[1]))[None, None] for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[0, 0, :, :values]
    return torch.autograd.grad(F.cross_entropy(o @ weights[3], y), weights)


def step_times(length: int, rounds: int) -> list[dict[str, object]]:
    """One step, loss and four gradients, of every contender."""
    x, y, weights = (problem(1, length)[i] for i in range(3))
    one = [w[0].clone().requires_grad_() for w in weights]
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    runs: dict[str, Callable[[], Any]] = {
        "ours": lambda: single_head_step(x[0], y[0], *(w[0] for w in weights))[1:],
        "plain autograd": lambda: plain_gradients(x[0], y[0], one, mask),
        "padded SDPA": lambda: flash_gradients(x[0], y[0], one),
    }
    expected = runs["ours"]()
    for name, run in runs.items():
        for a, b in zip(run(), expected, strict=True):
            assert float((a - b).norm() / b.norm()) < 1e-4, f"{name} differs from ours"
    timings = interleaved(runs, rounds=rounds, budget_s=30)
    rows: list[dict[str, object]] = []
    for name, timing in timings.items():
        ratio, best = timing.median / timings["ours"].median, timing.best / timings["ours"].best
        rows.append({"what": "step", "length": length, "name": name, **asdict(timing), "times_ours": ratio})
        print(
            f"step  T={length:5} {name:15} {timing.median:8.3f} ms [{timing.p20:.3f}, {timing.p80:.3f}]"
            f" best {timing.best:.3f}  ×{ratio:.1f} (best ×{best:.1f})",
            flush=True,
        )
    return rows


def sweep(length: int, seeds: int, steps: int, plain_steps: int) -> list[dict[str, object]]:
    """Seeds · steps per second: ours over 2 schedules × `seeds`, against the loop that one writes, on fewer steps."""
    x, y, weights = problem(2 * seeds, length)
    rates = torch.tensor([[0.01] * 4, [0.01, 0.01, 0.1, 0.01]]).repeat(seeds, 1)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    one = [w[0].clone().requires_grad_() for w in weights]
    optimiser = torch.optim.SGD(one, lr=0.01)

    def loop(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            for w, gradient in zip(one, plain_gradients(x[0], y[0], one, mask), strict=True):
                w.grad = gradient
            optimiser.step()
        return count / (time.perf_counter() - started)

    def trainer(count: int) -> float:
        started = time.perf_counter()
        train_single_head(x, y, *weights, rates=rates, steps=count, record_every=count)
        return 2 * seeds * (count + 1) / (time.perf_counter() - started)

    loop(1)
    before = loop(plain_steps)
    ours = trainer(steps)
    after = loop(plain_steps)
    plain = 0.5 * (before + after)
    rates_of = f"{ours:.0f} against {plain:.1f} seed·steps/s, ×{ours / plain:.1f}"
    print(f"sweep T={length:5} {seeds} seeds × 2 × {steps} steps: {rates_of}", flush=True)
    return [
        {"what": "sweep", "length": length, "seeds": seeds, "steps": steps, "ours": ours, "plain": plain}
        | {"times_plain": ours / plain}
    ]


def memory_child(length: int) -> None:
    """Print the peak growth of this process, in MiB, during one step."""

    def kib(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    x, y, weights = problem(1, 64)
    single_head_step(x[0], y[0], *(w[0] for w in weights))
    x, y, weights = problem(1, length)
    Path("/proc/self/clear_refs").write_text("5")
    before = kib("VmRSS")
    single_head_step(x[0], y[0], *(w[0] for w in weights))
    print((kib("VmHWM") - before) / 1024)


def memory() -> list[dict[str, object]]:
    """Peak memory of a step at doubling lengths, each in a process of its own."""
    rows: list[dict[str, object]] = []
    for length in (2000, 4000, 8000, 16000):
        command = [sys.executable, "-m", "bench.bench_single_head", "--memory-child", str(length)]
        found = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append({"what": "memory", "length": length, "MiB": found})
        print(f"memory T={length:6} {found:.1f} MiB, {1024 * found / length:.2f} KiB a position", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--memory-child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_child:
        memory_child(options.memory_child)
        return
    torch.set_num_threads(options.threads)
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    rows: list[dict[str, object]] = []
    for length in LENGTHS:
        rows += step_times(length, options.rounds)
    for length in LENGTHS:
        rows += sweep(length, options.seeds, options.steps, 10 if length > 1000 else 100)
    rows += memory()
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
