"""What every tunnel owes: pure functions of their names, exact predictives, clear refusals."""

import dataclasses
import math

import pytest
import torch

from bayesattn_fast.tunnels import (
    PRESETS,
    TUNNELS,
    Batch,
    Bijection,
    Hmm,
    Markov,
    Recall,
    Regression,
    Stream,
    Tunnel,
    make,
    preset,
)

SMALL: list[Tunnel] = [
    Bijection(symbols=8, pairs=7),
    Bijection(symbols=5, pairs=9, with_replacement=True, separator=True),
    Bijection(symbols=3, pairs=3, shared_symbols=True, separator=True),
    Hmm(observations=6),
    Hmm(states=2, symbols=7, observations=5, answer="observation"),
    Hmm(states=20, symbols=20, observations=3),
    Regression(dimensions=3, pairs=6, bins=11),
    Regression(dimensions=1, pairs=4, tau=2.0, sigma=0.1),
    Recall(pairs=8, symbols=32, fillers=4),
    Recall(pairs=5, symbols=9, fillers=3, queries=4, p_unseen=0.5, score_slot=True),
    Markov(chain=12),
    Markov(symbols=5, chain=9, dimensions=3, authors_matrix=True, embedding_seed=4),
]
each_tunnel = pytest.mark.parametrize("tunnel", SMALL, ids=lambda t: f"{t.name}-{SMALL.index(t)}")


def fields(batch: Batch) -> list[torch.Tensor]:
    return [getattr(batch, field.name) for field in dataclasses.fields(batch)]


@each_tunnel
def test_shapes_dtypes_and_ranges_are_those_of_the_protocol(tunnel: Tunnel) -> None:
    batch = tunnel.sample([3, 1], 0, 5)
    assert isinstance(tunnel, Tunnel)
    n, p, c = tunnel.length, len(tunnel.positions), tunnel.classes
    if tunnel.vocabulary is None:
        assert batch.inputs.shape == (2, 5, n, tunnel.input_size)
        assert batch.inputs.dtype == torch.float32
    else:
        assert batch.inputs.shape == (2, 5, n)
        assert batch.inputs.dtype == torch.int64
        assert tunnel.input_size is None
        assert 0 <= batch.inputs.min() <= batch.inputs.max() < tunnel.vocabulary
    assert [f.shape for f in fields(batch)[1:]] == [(2, 5, p), (2, 5, p, c), (2, 5, p)]
    assert [f.dtype for f in fields(batch)[1:]] == [torch.int64, torch.float32, torch.float32]
    assert all(f.is_contiguous() for f in fields(batch))
    assert list(tunnel.positions) == sorted(set(tunnel.positions))
    assert 0 <= tunnel.positions[0] <= tunnel.positions[-1] < n


@each_tunnel
@pytest.mark.parametrize(("first", "size"), [(0, 13), (0, 1), (12, 1), (3, 4), (5, 8)])
def test_any_split_of_a_batch_gives_the_same_bits(tunnel: Tunnel, first: int, size: int) -> None:
    whole = tunnel.sample([7, 2**40 + 3, 0], 9, 13)
    part = tunnel.sample([2**40 + 3], 9, size, first=first)
    for a, b in zip(fields(whole), fields(part), strict=True):
        assert torch.equal(a[1:2, first : first + size], b)


@each_tunnel
def test_seed_step_stream_and_sequence_each_change_the_data(tunnel: Tunnel) -> None:
    def inputs(seed: int = 1, step: int = 1, stream: Stream = Stream.TRAIN, first: int = 1) -> torch.Tensor:
        return tunnel.sample([seed], step, 8, stream=stream, first=first).inputs

    base = inputs()
    others = [inputs(seed=2), inputs(seed=1 + 2**32), inputs(step=2), inputs(stream=Stream.HELD_OUT), inputs(first=9)]
    assert not any(torch.equal(base, other) for other in others)
    assert torch.equal(base, inputs())


@each_tunnel
def test_targets_are_exact_samples_of_the_predictive(tunnel: Tunnel) -> None:
    """Their log-loss is the entropy, and every class comes up as often as predicted, whatever was shown just before:
    within 5 standard errors."""
    batch = tunnel.sample([11], 0, 3000)
    p = batch.predictive[0].double()
    assert (p.sum(-1) - 1).abs().max() < 1e-5
    surprise = -p.gather(2, batch.targets[0][..., None]).squeeze(2).log2() - batch.entropy[0]
    hits = torch.nn.functional.one_hot(batch.targets[0], tunnel.classes) - p
    # What was shown at the scored position, before it, and at the scored position before: none tells more than p.
    at = torch.tensor(tunnel.positions)
    shown = [batch.inputs[0][:, index].double() for index in (at, at[1:] - 1, at[:-1])]
    shown = [(x if x.dim() == 2 else x[..., 0]) for x in shown]
    told = [hits[:, -x.shape[1] :] * ((x - x.mean(0)) / (x.std(0) + 1e-9))[..., None] for x in shown]
    for excess in (surprise[..., None], hits, hits * p, *(x for x in told if x.shape[1])):
        per_sequence = excess.mean(1)
        error = per_sequence.std(0) / math.sqrt(len(p))
        assert (per_sequence.mean(0).abs() <= 5 * error + 1e-6).all()


@each_tunnel
def test_entropy_is_that_of_the_predictive(tunnel: Tunnel) -> None:
    batch = tunnel.sample([4], 2, 20)
    p = batch.predictive.double()
    entropy = -torch.special.xlogy(p, p).sum(-1) / math.log(2)
    assert (entropy - batch.entropy).abs().max() < 2e-6


@each_tunnel
def test_reference_predictors_are_distributions_over_the_answers(tunnel: Tunnel) -> None:
    batch = tunnel.sample([4, 5], 2, 6)
    for name, predictor in tunnel.reference_predictors(batch).items():
        assert predictor.shape == batch.predictive.shape, name
        assert predictor.dtype == torch.float32, name
        assert predictor.min() >= 0, name
        assert (predictor.sum(-1) - 1).abs().max() < 1e-5, name


@pytest.mark.parametrize(
    "tunnel",
    [
        Bijection(symbols=9, pairs=4),
        Bijection(symbols=4, pairs=4, with_replacement=True),
        Hmm(observations=4),
        Hmm(observations=4, answer="observation"),
        Regression(pairs=4),
        Markov(chain=5),
    ],
)
def test_a_longer_sequence_begins_with_the_shorter_one(tunnel: Tunnel) -> None:
    longer = tunnel.with_length(9)
    assert len(longer.positions) == 9
    short, long = tunnel.sample([2], 3, 6), longer.sample([2], 3, 6)
    scored = len(tunnel.positions)
    assert longer.positions[:scored] == tunnel.positions
    assert torch.equal(long.inputs[:, :, : tunnel.length], short.inputs)
    assert torch.equal(long.targets[..., :scored], short.targets)
    assert torch.equal(long.predictive[:, :, :scored], short.predictive)


REFUSALS = [
    ("bijection", {"symbols": 1}, "symbols must be an integer of at least 2; got 1"),
    ("bijection", {"symbols": 4, "pairs": 5}, r"pairs must be at most 4 \(keys are distinct.*got 5"),
    ("bijection", {"pairs": 2.5}, "pairs must be an integer of at least 1; got 2.5"),
    ("hmm", {"states": 21}, r"states must be at most 20 \(every probability is at least 0.05"),
    ("hmm", {"symbols": 21}, "symbols must be at most 20"),
    ("hmm", {"answer": "next"}, "answer must be 'state' or 'observation'; got 'next'"),
    ("regression", {"sigma": 0.0}, "sigma must be positive and finite; got 0.0"),
    ("recall", {"pairs": 300}, "pairs must be at most 256"),
    ("recall", {"pairs": 30, "symbols": 32, "p_unseen": 0.1}, "pairs must be at most 29"),
    ("recall", {"pairs": 2}, r"queries must be at most 2 \(queried keys are distinct\); got 3"),
    ("recall", {"p_unseen": 1.5}, r"p_unseen must lie in \[0, 1\]; got 1.5"),
    ("markov", {"stay": 1.0}, r"stay must lie in \[0, 1\); got 1.0"),
    ("markov", {"chain": 1}, "chain must be an integer of at least 2"),
    ("bijektion", {}, "there is no tunnel 'bijektion'; did you mean 'bijection'"),
    ("hmm", {"observation": 3}, "there is no hmm size 'observation'; did you mean 'observations'"),
]


@pytest.mark.parametrize(("name", "sizes", "message"), REFUSALS)
def test_sizes_that_make_no_task_are_refused_by_name(name: str, sizes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 0, 1), "seeds must be one or more"),
        (([-1], 0, 1), "seeds must be"),
        (([0], -1, 1), "step, first"),
        (([0], 0, 0), "size must be at least 1; got 0"),
    ],
)
def test_draws_that_have_no_name_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bijection().sample(*arguments)


def test_every_tunnel_has_both_presets_and_goes_by_its_own_name() -> None:
    for presets in PRESETS.values():
        assert list(presets) == list(TUNNELS)
    for name, kind in TUNNELS.items():
        assert kind.name == name
        assert isinstance(preset(name, "paper"), kind)
        assert make(name) == preset(name, "paper")
