"""When routing and values settle: the distances, the definition, and that the replay is the run itself."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from bayesattn_fast.api import configure
from bayesattn_fast.dynamics.two_timescale import (
    Probing,
    probe,
    replay,
    routing_distance,
    settled_at,
    settling,
    value_distance,
)
from bayesattn_fast.training import Engine, RunConfig, fit, preset
from bayesattn_fast.tunnels.protocol import Stream

SMALL = {"layers": 2, "d_model": 16, "heads": 2, "batch": 8, "eval_sequences": 16, "warmup": 5, "steps": 12}


def small(**settings: object) -> RunConfig:
    return configure(preset("bijection", "quick", (0, 4)), {**SMALL, **settings})


def test_settled_is_the_start_of_the_last_stretch_below_and_the_end_says_nothing() -> None:
    steps = [0, 1, 5, 9]
    assert settled_at(steps, [1.0, 0.01, 0.01, 0.0], 0.05) == 1
    assert settled_at(steps, [0.01, 0.5, 0.01, 0.0], 0.05) == 5
    assert settled_at(steps, [1.0, 0.5, 0.2, 0.0], 0.05) is None
    assert settled_at(steps, [1.0, 0.05, 0.05, 0.0], 0.05) is None


def test_distances_of_routings_and_values_known_by_hand() -> None:
    one, other = torch.eye(3).view(1, 1, 1, 3, 3), torch.eye(3).view(1, 1, 1, 3, 3).clone()
    other[..., 1, :] = torch.tensor([0.25, 0.75, 0.0])
    # Total variation 0.25 in one of the two queries that have a choice.
    assert float(routing_distance(one, other)) == pytest.approx(0.125)
    assert float(value_distance(3 * one, one)) == pytest.approx(2.0)


def test_a_replay_is_the_run_bit_for_bit_and_probing_leaves_it_alone(tmp_path: Path) -> None:
    run = fit(small(), tmp_path / "run")
    found = replay(run.folder, Probing(probes=6, sequences=4))
    assert found.drift == 0.0
    assert {row["step"] for row in found.rows} >= {0, 1, 12}
    last = [row for row in found.rows if row["step"] == 12]
    assert len(last) == 2 * 2 * 2
    assert all(row["routing_distance"] == row["value_distance"] == 0 for row in last)
    assert all(row["value_distance"] > 0 for row in found.rows if row["step"] == 0)
    assert replay(run.folder, Probing(probes=6, sequences=4)) == found  # from what was kept


def test_the_probed_routing_has_the_entropy_that_the_kernel_recorded() -> None:
    engine = Engine(small())
    head = probe(engine, engine.config.tunnel.sample((0, 4), 0, 5, stream=Stream.HELD_OUT))
    for layer, alpha in enumerate(head.alpha):
        bits = torch.special.entr(alpha.double()).sum(-1).mean((1, 3)) / torch.log(torch.tensor(2.0))
        assert torch.allclose(bits, head.watched[:, layer, :, 1], rtol=1e-5)


def curve(routing: list[float], values: list[float]) -> list[dict]:
    return [
        {"seed": 0, "layer": 1, "head": 0, "step": 10 * i, "routing_distance": r, "value_distance": v}
        for i, (r, v) in enumerate(zip(routing, values, strict=True))
    ]


@pytest.mark.parametrize(
    ("routing", "values", "first"),
    [
        ([0.5, 0.01, 0.01, 0.0], [2.0, 1.0, 0.01, 0.0], "routing"),
        ([0.5, 0.5, 0.01, 0.0], [2.0, 0.01, 0.01, 0.0], "values"),
        ([0.5, 0.5, 0.5, 0.0], [2.0, 0.01, 0.01, 0.0], "values"),
        ([0.5, 0.01, 0.01, 0.0], [2.0, 0.01, 0.01, 0.0], "together"),
        ([0.5, 0.5, 0.5, 0.0], [2.0, 1.0, 1.0, 0.0], "neither"),
    ],
)
def test_what_settles_first(routing: list[float], values: list[float], first: str) -> None:
    (found,) = settling(curve(routing, values), 0.05)
    assert (found.seed, found.layer, found.head, found.first) == (0, 1, 0, first)


def test_a_relative_threshold_is_a_share_of_the_first_distance() -> None:
    (found,) = settling(curve([0.5, 0.02, 0.02, 0.0], [2.0, 0.09, 0.09, 0.0]), 0.05, relative=True)
    assert (found.routing, found.values) == (10, 10)
    (absolute,) = settling(curve([0.5, 0.02, 0.02, 0.0], [2.0, 0.09, 0.09, 0.0]), 0.05)
    assert (absolute.routing, absolute.values) == (10, None)


def test_runs_that_cannot_be_replayed_are_refused(tmp_path: Path) -> None:
    fit(small(model="lstm"), tmp_path / "lstm")
    with pytest.raises(ValueError, match="holds a lstm; two-timescale takes runs of transformers"):
        replay(tmp_path / "lstm", Probing())
    with pytest.raises(ValueError, match="there is no run folder"):
        replay(tmp_path / "none", Probing())
    with pytest.raises(ValueError, match="probes must be at least 3; got 2"):
        Probing(probes=2)


@pytest.mark.parametrize(("probes", "last"), [(3, 2), (4, 1000), (40, 7), (41, 2500)])
def test_probed_steps_are_within_the_run_at_both_ends_and_no_more_than_asked_for(probes: int, last: int) -> None:
    steps = Probing(probes=probes).steps(last)
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, last)
    assert min(probes, last + 1) / 2 < len(steps) <= probes
    # No stretch of training goes unseen.
    assert max(b - a for a, b in pairwise(steps)) <= last / (probes // 2) + 1
