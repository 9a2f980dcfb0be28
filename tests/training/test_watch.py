"""A watched run: its numbers are those of attention, it trains as an unwatched one, it resumes to the same bits."""

from pathlib import Path

import pytest
import torch

from bayesattn_fast.api import configure
from bayesattn_fast.ops.attention import attention_dynamics
from bayesattn_fast.report import read_run, write_report
from bayesattn_fast.report.attention_figure import head_curves
from bayesattn_fast.storage import read_table
from bayesattn_fast.training import Engine, Interrupted, RunConfig, fit, preset
from bayesattn_fast.training.engine import seed_losses
from bayesattn_fast.training.watch import QUANTITIES
from tests.closeness import assert_close
from tests.training.test_fit import stop_after

SMALL = {"layers": 2, "d_model": 16, "heads": 2, "batch": 8, "eval_sequences": 32, "warmup": 5}


def small(seeds: tuple[int, ...] = (0, 1), **settings: object) -> RunConfig:
    return configure(preset("bijection", "quick", seeds), {**SMALL, **settings})


def test_a_record_equals_the_closed_forms_of_each_sequences_own_loss() -> None:
    """Seed 1, layer 1 anew: the gradient of the sum of one sequence's losses, through plain softmax attention."""
    engine = Engine(small(watch_every=1))
    batch, model = engine.sample(), Engine(small()).model
    caught = {}
    attn = model.blocks[1].attn
    attn.qkv.register_forward_hook(lambda module, args, out: caught.update(qkv=out))
    attn.out.register_forward_pre_hook(lambda module, args: caught.update(o=args[0]))
    caught.clear()
    answers = batch.targets.shape[2]
    losses = seed_losses(model(batch.inputs), batch, "hard") * 8 * answers  # the sum over sequences
    (u,) = torch.autograd.grad(losses.sum(), caught["o"])
    q, k, v = caught["qkv"][1].unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    u = u[1].unflatten(-1, (2, 8)).transpose(1, 2)
    found = attention_dynamics(*(x.double() for x in (q, k, v, u)))
    share = found.columns.responsibility / q.shape[2]
    exact = {
        "advantage_variance": found.rows.variance.mean((0, 2)),
        "routing_entropy": found.forward.entropy.mean((0, 2)) / torch.log(torch.tensor(2.0)),
        "largest_weight": found.forward.max_weight.mean((0, 2)),
        "heaviest_key": share.amax(2).mean(0),
        "effective_keys": torch.special.entr(share).sum(2).exp().mean(0),
    }
    engine.update()
    for i, name in enumerate(QUANTITIES):
        assert_close(engine.watched[0][1, 1, :, i], exact[name], 1e-5, name)


def test_watching_leaves_training_as_it_is_up_to_rounding() -> None:
    plain, watched = Engine(small()), Engine(small(watch_every=3))
    for _ in range(20):
        assert_close(plain.update().loss, watched.update().loss, 1e-5, "loss")
    assert watched.watched_steps == [0, 3, 6, 9, 12, 15, 18]


def test_a_seed_is_watched_the_same_alone_and_packed() -> None:
    alone, packed = Engine(small((3,), watch_every=1)), Engine(small((0, 3), watch_every=1))
    alone.update(), packed.update()
    assert_close(packed.watched[0][1], alone.watched[0][0], 1e-5, "record")


@pytest.mark.parametrize("stopped_at", [1, 7, 12])
def test_an_interrupted_watched_run_goes_on_to_the_same_bits(tmp_path: Path, stopped_at: int) -> None:
    config = small(steps=20, eval_every=10, checkpoint_every=5, watch_every=4)
    fit(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(config, tmp_path / "parts", on_step=stop_after(stopped_at))
    fit(config, tmp_path / "parts", resume=True)
    tables = [read_table(tmp_path / name / "watch.parquet") for name in ("whole", "parts")]
    assert tables[0] == tables[1]
    assert [(r["seed"], r["step"], r["layer"], r["head"]) for r in tables[0]] == [
        (seed, step, layer, head)
        for step in (0, 4, 8, 12, 16)
        for seed in (0, 1)
        for layer in (0, 1)
        for head in (0, 1)
    ]


def test_the_report_of_a_watched_run_shows_its_heads(tmp_path: Path) -> None:
    fit(small(steps=6, watch_every=2), tmp_path / "watched")
    fit(small(steps=6), tmp_path / "plain")
    pages = {name: write_report(tmp_path / name).read_text() for name in ("watched", "plain")}
    assert "Attention over training" in pages["watched"]
    assert "Attention over training" not in pages["plain"]
    rows = read_run(tmp_path / "watched").watch
    curves = head_curves(rows, "routing_entropy", diverged=[0])
    assert sorted(curves) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    of_seed_1 = [r["routing_entropy"] for r in rows if (r["seed"], r["layer"], r["head"]) == (1, 1, 0)]
    assert curves[1, 0] == ([0, 2, 4], pytest.approx(of_seed_1))


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="watch_every records attention heads, so model must be transformer; got lstm"):
        fit(small(watch_every=5, model="lstm"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="watch_every must not be negative; got -1"):
        small(watch_every=-1)
