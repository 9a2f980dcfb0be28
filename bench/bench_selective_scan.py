"""Selective scan: ours beside its peers, growth with length, peak memory, and a patched transformers model.

    python -m bench.bench_selective_scan --json scan.json        all of it, a few minutes
    python -m bench.bench_selective_scan --quick                 ours and the unbind loop only

mamba-ssm is a peer where its Python half is on the path; without CUDA it installs with MAMBA_SKIP_CUDA_BUILD=TRUE
MAMBA_FORCE_BUILD=TRUE pip install --no-build-isolation --no-deps mamba-ssm (it also needs einops).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from bayesattn_fast.bench.peers.scan import Scan, load, unbind_loop
from bayesattn_fast.ops.causal_conv1d import causal_conv1d_fn
from bayesattn_fast.ops.selective_scan import selective_scan_fn

from .interleaved import interleaved, machine

SHAPES = [(64, 256, 16, 40), (64, 256, 16, 128)]
LENGTHS = [40, 64, 128, 256, 512, 1024, 2048, 4096]
MEMORY_SHAPES = [(16, 256, 16, 512), (16, 256, 64, 512), (4, 256, 16, 4096)]


def ours(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> Tensor:
    out = selective_scan_fn(u, delta, A, B, C, D, None, bias, True)
    assert isinstance(out, Tensor)
    return out


def inputs(batch: int, channels: int, states: int, length: int, grad: bool) -> list[Tensor]:
    """Tensors as a Mamba block makes them: A = −1 … −N, steps of about 0.01 to 1."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, channels, length)] * 2 + [(batch, states, length)] * 2 + [(channels,)] * 2
    u, delta, B, C, D, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    A = -torch.arange(1.0, states + 1).repeat(channels, 1)
    return [t.requires_grad_(grad) for t in (u, delta, A, B, C, D, bias - 2)]


def forward(scan: Scan, tensors: list[Tensor]) -> Callable[[], object]:
    def run() -> Tensor:
        with torch.no_grad():
            return scan(*tensors)

    return run


def forward_and_backward(scan: Scan, tensors: list[Tensor], upstream: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(scan(*tensors), tensors, upstream)


def speed(peers: dict[str, Scan]) -> list[dict[str, object]]:
    """Forward and forward + backward of every contender, checked against ours before it is timed."""
    rows: list[dict[str, object]] = []
    for shape in SHAPES:
        tensors = inputs(*shape, grad=True)
        expected = ours(*tensors).detach()
        for name, scan in peers.items():
            error = (scan(*tensors).detach() - expected).norm() / expected.norm()
            assert error < 1e-4, f"{name} differs from ours by {error:.1e}"
        everyone = {"ours": ours, **peers}
        upstream = torch.randn_like(expected)
        for mode in ("forward", "forward + backward"):
            runs = {
                name: forward(scan, tensors) if mode == "forward" else forward_and_backward(scan, tensors, upstream)
                for name, scan in everyone.items()
            }
            timings = interleaved(runs, budget_s=40)
            for name, timing in timings.items():
                times_ours = timing.median / timings["ours"].median
                rows.append({"shape": shape, "mode": mode, "name": name, **asdict(timing), "times_ours": times_ours})
                print(
                    f"{shape!s:20} {mode:18} {name:14} {timing.median:10.2f} ms"
                    f"  [{timing.p20:.2f}, {timing.p80:.2f}]  ×{times_ours:.1f}",
                    flush=True,
                )
    return rows


def growth() -> list[dict[str, object]]:
    """Time per position at every length, flat if the time is linear; the batch makes up 65,536 positions at each."""
    runs: dict[str, Callable[[], object]] = {}
    for length in LENGTHS:
        tensors = inputs(2**16 // length, 128, 16, length, grad=True)
        runs[f"{length} forward"] = forward(ours, tensors)
        runs[f"{length} forward + backward"] = forward_and_backward(ours, tensors, torch.randn_like(tensors[0]))
    rows: list[dict[str, object]] = []
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    timings = interleaved(runs, rounds=12, budget_s=200, clock=clock)
    for mode in ("forward", "forward + backward"):
        # The best of many: other work on the machine only ever adds.
        each = {n: 1e3 * timings[f"{n} {mode}"].best / (2**16 // n * n) for n in LENGTHS}
        middle = sorted(each.values())[len(each) // 2]
        for length in LENGTHS:
            rows.append({"length": length, "mode": mode, "us_per_position": each[length]})
            print(f"length {length:5} {mode:18} {each[length]:8.3f} µs a position  {each[length] / middle - 1:+.0%}")
    return rows


def memory_child(shape: list[int]) -> None:
    """Print the peak growth of this process during forward + backward, and the bytes of inputs and outputs."""

    def kib(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

    forward_and_backward(ours, inputs(1, 16, 4, 70, grad=True), torch.ones(1, 16, 70))()
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark anew
    before = kib("VmRSS")
    tensors = inputs(*shape, grad=True)
    upstream = torch.randn_like(tensors[0])
    out = ours(*tensors)
    gradients = torch.autograd.grad(out, tensors, upstream)
    size = sum(t.numel() * t.element_size() for t in (*tensors, upstream, out, *gradients))
    print(json.dumps({"peak": (kib("VmHWM") - before) * 1024, "inputs_and_outputs": size}))


def memory() -> list[dict[str, object]]:
    """Peak memory of forward + backward over that of its inputs and outputs, each in a process of its own."""
    rows: list[dict[str, object]] = []
    for shape in MEMORY_SHAPES:
        command = [sys.executable, "-m", "bench.bench_selective_scan", "--memory-child", *map(str, shape)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ratio = found["peak"] / found["inputs_and_outputs"]
        rows.append({"shape": shape, **found, "ratio": ratio})
        print(f"{shape!s:20} peak {found['peak'] / 2**20:.0f} MiB, ×{ratio:.2f} of inputs and outputs")
    return rows


def convolution() -> list[dict[str, object]]:
    """Convolution with SiLU, forward + backward, beside PyTorch's conv1d, in both layouts."""
    rows: list[dict[str, object]] = []
    weight, bias = torch.randn(256, 4, requires_grad=True), torch.randn(256, requires_grad=True)

    def plain(x: Tensor) -> Tensor:
        return torch.nn.functional.silu(
            torch.nn.functional.conv1d(x, weight.unsqueeze(1), bias, padding=3, groups=256)[..., : x.shape[-1]]
        )

    def fast(x: Tensor) -> Tensor:
        out = causal_conv1d_fn(x, weight, bias, activation="silu")
        assert isinstance(out, Tensor)
        return out

    for layout in ("channel-first", "channel-last"):
        x = torch.randn(64, 256, 128) if layout == "channel-first" else torch.randn(64, 128, 256).transpose(1, 2)
        upstream = torch.randn_like(x)
        x.requires_grad_()

        def step(convolve: Callable[[Tensor], Tensor], x: Tensor = x, upstream: Tensor = upstream) -> object:
            return torch.autograd.grad(convolve(x), (x, weight, bias), upstream)

        timings = interleaved({"ours": lambda s=step: s(fast), "torch": lambda s=step: s(plain)})
        for name, timing in timings.items():
            times_ours = timing.median / timings["ours"].median
            rows.append({"layout": layout, "name": name, **asdict(timing), "times_ours": times_ours})
            print(f"conv1d + silu {layout:14} {name:6} {timing.median:8.2f} ms  ×{times_ours:.1f}")
    return rows


def patched_transformers() -> list[dict[str, object]]:
    """A small MambaForCausalLM, loss and gradients, before and after patch()."""
    try:
        from transformers import MambaConfig, MambaForCausalLM
    except ImportError as error:
        print(f"skipped transformers: {error}")
        return []
    from bayesattn_fast.patching import patch, unpatch

    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=64, state_size=16, num_hidden_layers=2)).train()
    ids = torch.randint(0, 64, (16, 128))

    def step(patched: bool) -> None:
        if patched:
            patch("transformers")
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        unpatch()

    timings = interleaved({"patched": lambda: step(True), "plain": lambda: step(False)}, rounds=7, budget_s=40)
    plain, patched = timings["plain"].median, timings["patched"].median
    print(f"transformers Mamba, (16, 128) tokens, 2 × 64: {plain:.0f} → {patched:.0f} ms, ×{plain / patched:.1f}")
    return [{"name": name, **asdict(timing)} for name, timing in timings.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--quick", action="store_true", help="no peer but the unbind loop")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-child", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_child:
        memory_child(options.memory_child)
        return
    peers, missing = ({"unbind loop": unbind_loop}, {}) if options.quick else load()
    print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    for name, reason in missing.items():
        print(f"skipped {name}: {reason}")
    result = {
        "machine": machine(),
        "skipped": missing,
        "speed": speed(peers),
        "growth": growth(),
        "memory": memory(),
        "convolution": convolution(),
        "transformers": [] if options.quick else patched_transformers(),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
