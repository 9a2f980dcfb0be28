"""Exact posteriors, samplers and scores beside their peers, with the ratio each is meant to reach.

    python -m bench.bench_posteriors --json posteriors.json      all of it, a minute or two
    python -m bench.bench_posteriors --only hmm

hmmlearn and dynamax (with jax) are peers where they are installed.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from bayesattn_fast.bench.peers import posteriors as peers
from bayesattn_fast.kernels.regression.reference import bin_edges, half_range
from bayesattn_fast.ops.score import cross_entropy, score
from bayesattn_fast.posteriors import hmm_filter, regression_predictive
from bayesattn_fast.tunnels import Bijection, Hmm

from .interleaved import interleaved, machine

Case = tuple[dict[str, Callable[[], object]], dict[str, int], dict[str, float]]
"""Contenders ("ours" first), units of work of each, and the ratio of speeds wanted over each peer."""


def hmm(batch: int = 4096, few: int = 64) -> Case:
    """Filter, predictive, evidence and entropy, T = 20, S = O = 5, float32."""
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.rand(batch, 5, 5, generator=generator).add(0.1) for _ in range(2)]
    p, e = (m / m.sum(-1, keepdim=True) for m in matrices)
    seen = torch.randint(0, 5, (batch, 20), generator=generator)
    kept = hmm_filter(p, e, seen)
    plain = peers.torch_filter(p, e, seen)
    assert (kept.posterior - plain[0]).abs().max() < 1e-5
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: hmm_filter(p, e, seen, out=kept),
        "ours, fresh memory": lambda: hmm_filter(p, e, seen),
        "vectorised torch": lambda: peers.torch_filter(p, e, seen),
        "hmmlearn": peers.hmmlearn_filter(p[:few], e[:few], seen[:few]),
    }
    with contextlib.suppress(ImportError):
        contenders["dynamax"] = peers.dynamax_filter(p, e, seen)
    work = dict.fromkeys(contenders, batch) | {"hmmlearn": few}
    return contenders, work, {"vectorised torch": 12, "dynamax": 15, "hmmlearn": 1000}


def hmm_data(batch: int = 4096, few: int = 16) -> Case:
    """A batch of the HMM tunnel, K = 20: matrices, tokens, answers, exact posterior and entropy."""
    tunnel, rng = Hmm(observations=20), np.random.default_rng(0)
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: tunnel.sample([0], 0, batch),
        "loops": lambda: [peers.loop_hmm(rng) for _ in range(few)],
    }
    return contenders, {"ours": batch, "loops": few}, {"loops": 2000}


def bijection_data(batch: int = 4096, few: int = 64) -> Case:
    """A batch of the bijection tunnel, V = 20, L = 19."""
    tunnel, rng = Bijection(symbols=20, pairs=19), np.random.default_rng(0)
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: tunnel.sample([0], 0, batch),
        "vectorised torch": lambda: peers.torch_bijections(batch),
        "loops": lambda: [peers.loop_bijection(rng) for _ in range(few)],
    }
    return contenders, dict.fromkeys(contenders, batch) | {"loops": few}, {"loops": 300}


def regression(batch: int = 1024) -> Case:
    """Bayesian regression, d = 4, L = 32, 64 bins, float32."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(batch, 32, 4, generator=generator), torch.randn(batch, 32, generator=generator)
    edges = torch.tensor(bin_edges(64, half_range(4, 1.0, 0.5)))
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: regression_predictive(x, y),
        "torch, a solve per position": lambda: peers.torch_regression(x, y, 1.0, 0.5, edges),
    }
    return contenders, dict.fromkeys(contenders, batch), {"torch, a solve per position": 10}


def scores(rows: int = 64 * 19, classes: int = 20) -> Case:
    """Loss, entropy, KL and TVD of a batch of the bijection tunnel (ours makes seven scores)."""
    x, p = torch.randn(rows, classes), torch.randn(rows, classes).softmax(-1)
    y = torch.randint(0, classes, (rows,))
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: score(x, p, y),
        "torch": lambda: peers.torch_scores(x, p),
    }
    return contenders, dict.fromkeys(contenders, rows), {"torch": 2}


def losses(rows: int = 4096 * 19, classes: int = 20) -> Case:
    """Soft-target cross-entropy, forward and backward."""
    x, p = torch.randn(rows, classes, requires_grad=True), torch.randn(rows, classes).softmax(-1)
    contenders: dict[str, Callable[[], object]] = {
        "ours": lambda: torch.autograd.grad(cross_entropy(x, predictive=p).sum(), x),
        "torch": lambda: torch.autograd.grad(-(p * x.log_softmax(-1)).sum(), x),
    }
    return contenders, dict.fromkeys(contenders, rows), {"torch": 2}


CASES: dict[str, Callable[[], Case]] = {
    "hmm": hmm,
    "hmm data": hmm_data,
    "bijection data": bijection_data,
    "regression": regression,
    "scores": scores,
    "losses": losses,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--only", choices=CASES, help="one case")
    parser.add_argument("--cpu-time", action="store_true", help="processor time, one thread: for a busy machine")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds per case")
    given = parser.parse_args()
    if given.cpu_time:
        torch.set_num_threads(1)
    print(machine())
    clock = time.process_time if given.cpu_time else time.perf_counter
    rows = []
    for name, make in CASES.items():
        if given.only not in (None, name):
            continue
        contenders, work, wanted = make()
        timings = interleaved(contenders, rounds=25, budget_s=given.budget, clock=clock)
        rate = {peer: work[peer] / timings[peer].median * 1e3 for peer in contenders}
        for peer in contenders:
            ratio, target = rate["ours"] / rate[peer], wanted.get(peer)
            verdict = "" if target is None else f"  wanted ×{target}: {'met' if ratio >= target else 'MISSED'}"
            print(f"{name:15} {peer:28} {rate[peer]:14,.0f} /s   ours ×{ratio:.2f}{verdict}", flush=True)
            rows.append({"case": name, "name": peer, "per_second": rate[peer], "ours_times": ratio, "wanted": target}
                        | asdict(timings[peer]))  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
