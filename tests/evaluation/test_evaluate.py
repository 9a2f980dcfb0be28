"""evaluate() gives the scores that the definitions give on the whole held-out set, however it is cut up."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from bayesattn_fast.evaluation import METRICS, MODEL, evaluate
from bayesattn_fast.evaluation.evaluate import Evaluation
from bayesattn_fast.evaluation.references import BEST_CONSTANT, EXACT, POSITION_ONLY, UNIFORM
from bayesattn_fast.evaluation.summary import Interval, interval
from bayesattn_fast.tunnels.protocol import Batch, Stream
from tests.closeness import assert_close
from tests.evaluation.urn import Urn

URN = Urn()


def exact(inputs: Tensor) -> Tensor:
    return URN.predictive(inputs).log()


def blurred(inputs: Tensor) -> Tensor:
    """Neither exact nor constant: square roots of the exact probabilities, one draw forgotten."""
    return torch.log(0.05 + URN.predictive(inputs).roll(1, dims=-2)) / 2


def held_out(seeds: list[int], sequences: int) -> Batch:
    return URN.sample(seeds, 0, sequences, stream=Stream.HELD_OUT)


def assert_equal_scores(a: Evaluation, b: Evaluation, tolerance: float) -> None:
    assert a.predictors.keys() == b.predictors.keys()
    for predictor, scores in a.predictors.items():
        for metric, values in scores.by_position.items():
            expected = b.predictors[predictor].by_position[metric]
            assert torch.allclose(values, expected, rtol=tolerance, atol=tolerance, equal_nan=True), (predictor, metric)
        assert torch.allclose(scores.sampled_loss_se, b.predictors[predictor].sampled_loss_se, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_chunks_change_nothing(chunk: int) -> None:
    whole = evaluate(blurred, URN, [0, 5], sequences=100, chunk=100)
    assert_equal_scores(evaluate(blurred, URN, [0, 5], sequences=100, chunk=chunk), whole, 1e-12)


def test_a_seed_scores_the_same_alone_and_among_others() -> None:
    together = evaluate(blurred, URN, [3, 5, 9], sequences=60)
    alone = evaluate(blurred, URN, [5], sequences=60)
    for predictor, scores in together.predictors.items():
        for metric, values in scores.by_position.items():
            assert torch.allclose(values[1], alone.predictors[predictor].by_position[metric][0], atol=1e-12), metric


def test_scores_are_plain_means_over_the_held_out_stream() -> None:
    batch = held_out([0, 1], 50)
    q = torch.softmax(blurred(batch.inputs).double(), -1)
    p = batch.predictive.double()
    entropy = -(q * q.log2()).sum(-1)
    bayes = -torch.xlogy(p, p).sum(-1) / math.log(2)
    kl = (torch.xlogy(p, p) - p * q.log()).sum(-1) / math.log(2)
    evaluation = evaluate(blurred, URN, [0, 1], sequences=50)
    scores = evaluation.predictors[MODEL].by_position
    assert_close(scores["kl"], kl.mean(1), 1e-6)
    assert_close(scores["entropy_mae"], (entropy.mean(1) - bayes.mean(1)).abs(), 1e-6)
    assert_close(scores["entropy_abs_error"], (entropy - bayes).abs().mean(1), 1e-6)
    assert_close(scores["impossible_mass"], torch.where(p == 0, q, 0).sum(-1).mean(1), 1e-6)
    assert_close(evaluation.per_seed("bayes_floor"), bayes.mean((1, 2)) * math.log(2), 1e-6)
    assert_close(evaluation.per_seed("entropy_mae"), (entropy.mean(1) - bayes.mean(1)).abs().mean(1), 1e-6)
    nll = -q.log().gather(-1, batch.targets[..., None]).squeeze(-1)
    excess = (nll - bayes * math.log(2)).mean(-1)
    assert_close(evaluation.predictors[MODEL].sampled_loss_se, excess.std(1) / math.sqrt(50), 1e-6)


def test_opposite_errors_cancel_in_the_papers_score_and_not_in_the_strict_one() -> None:
    class Coins(Urn):
        """Half of the sequences have entropy 1 bit at every position, half 0; a first token tells which."""

        def sample(self, seeds: object, step: int, size: int, *, first: int = 0, **_: object) -> Batch:
            fair = (torch.arange(first, first + size) % 2).view(1, -1, 1).expand(1, size, self.draws)
            p = 1 - fair / 2
            predictive = torch.stack([p, 1 - p], -1).float()
            return Batch(fair, torch.zeros_like(fair), predictive, fair.float())

        def reference_predictors(self, batch: Batch) -> dict[str, Tensor]:
            return {}

    def swapped(fair: Tensor) -> Tensor:
        p = 1 - (1 - fair) / 2
        return torch.stack([p, 1 - p], -1).log()

    evaluation = evaluate(swapped, Coins(colours=2, draws=3), [0], sequences=10)
    assert float(evaluation.per_seed("entropy_mae")) == pytest.approx(0.0, abs=1e-12)
    assert float(evaluation.per_seed("entropy_abs_error")) == pytest.approx(1.0)
    assert float(evaluation.per_seed("kl")) == math.inf  # certain of one answer where both are possible
    assert float(evaluation.per_seed("entropy_mae", POSITION_ONLY)) == 0.0
    assert float(evaluation.per_seed("entropy_abs_error", POSITION_ONLY)) == pytest.approx(0.5)
    assert float(evaluation.per_seed("entropy_abs_error", BEST_CONSTANT)) == pytest.approx(0.5)


def test_exact_predictor_scores_zero_and_reaches_the_floor_and_the_accuracy_of_bayes() -> None:
    evaluation = evaluate(exact, URN, [0, 1], sequences=64)
    for predictor in (MODEL, EXACT):
        for metric in ("kl", "tvd", "gap", "entropy_mae", "entropy_abs_error", "impossible_mass"):
            assert float(evaluation.per_seed(metric, predictor).abs().max()) < 1e-6, (predictor, metric)
        assert evaluation.per_seed("accuracy", predictor).tolist() == evaluation.per_seed("bayes_accuracy").tolist()
    assert evaluation.warnings == ()


def test_references_equal_their_definitions() -> None:
    batch = held_out([0, 1], 40)
    evaluation = evaluate(blurred, URN, [0, 1], sequences=40)
    p = batch.predictive.double()
    bayes = -torch.xlogy(p, p).sum(-1) / math.log(2)
    constant = p.mean((1, 2), keepdim=True).expand_as(p)
    by_position = p.mean(1, keepdim=True).expand_as(p)
    for name, q in ((BEST_CONSTANT, constant), (POSITION_ONLY, by_position), (UNIFORM, torch.full_like(p, 1 / 4))):
        kl = (torch.xlogy(p, p) - p * q.log()).sum(-1) / math.log(2)
        assert_close(evaluation.per_seed("kl", name), kl.mean((1, 2)), 1e-6, name)
        assert_close(evaluation.per_seed("tvd", name), (p - q).abs().sum(-1).mean((1, 2)) / 2, 1e-6, name)
    assert evaluation.per_seed("accuracy", UNIFORM).tolist() == pytest.approx([0.25, 0.25])
    assert_close(evaluation.per_seed("entropy_bits", UNIFORM), torch.full((2,), 2.0), 1e-12)
    # No other constant does better, for either score: each median against a grid around it.
    for c in torch.linspace(0, 2, 41, dtype=torch.float64):
        strict = (bayes - c).abs().mean((1, 2))
        assert (evaluation.per_seed("entropy_abs_error", BEST_CONSTANT) <= strict + 1e-6).all()
        mae = (bayes.mean(1) - c).abs().mean(-1)
        assert (evaluation.per_seed("entropy_mae", BEST_CONSTANT) <= mae + 1e-6).all()
    assert evaluation.per_seed("entropy_mae", POSITION_ONLY).tolist() == [0.0, 0.0]


def test_no_reference_without_context_has_a_lower_loss_than_one_with_more_freedom() -> None:
    evaluation = evaluate(blurred, URN, range(3), sequences=200)
    losses = [evaluation.per_seed("loss", name) for name in (UNIFORM, BEST_CONSTANT, POSITION_ONLY, EXACT)]
    for worse, better in itertools.pairwise(losses):
        assert (better <= worse + 1e-9).all()
    # The tunnel's own predictor forgets all but the last draw: between knowing nothing and knowing all.
    own = evaluation.per_seed("loss", "last draw only")
    assert (own < losses[0]).all()
    assert (own > losses[-1]).all()


def test_model_that_sees_the_answers_is_reported_as_a_bug() -> None:
    batch = held_out([2, 4], 100)

    def leaky(inputs: Tensor) -> Tensor:
        return 5.0 * torch.nn.functional.one_hot(batch.targets, 4) + exact(inputs).clamp_min(-30)

    (warning,) = evaluate(leaky, URN, [2, 4], sequences=100, chunk=100).warnings
    assert warning.startswith("seeds 2, 4: the loss on sampled answers is below the Bayes floor")


def test_answers_that_do_not_follow_the_predictive_are_reported_as_a_bug_of_the_tunnel() -> None:
    class Loaded(Urn):
        def sample(self, *args: object, **options: object) -> Batch:
            batch = super().sample(*args, **options)
            return Batch(batch.inputs, batch.predictive.argmax(-1), batch.predictive, batch.entropy)

    class Impossible(Urn):
        def sample(self, *args: object, **options: object) -> Batch:
            batch = super().sample(*args, **options)
            return Batch(batch.inputs, batch.predictive.argmin(-1), batch.predictive, batch.entropy)

    assert any("do not follow" in text for text in evaluate(blurred, Loaded(), [0], sequences=500).warnings)
    assert any("rules out" in text for text in evaluate(blurred, Impossible(), [0], sequences=50).warnings)


def test_seed_of_broken_predictions_is_named_and_left_out_of_the_mean() -> None:
    def half_broken(inputs: Tensor) -> Tensor:
        logits = blurred(inputs).clone()
        logits[1] = torch.nan
        return logits

    evaluation = evaluate(half_broken, URN, [7, 8, 9], sequences=40)
    healthy = evaluate(blurred, URN, [7, 8, 9], sequences=40)
    assert evaluation.per_seed("kl").isnan().tolist() == [False, True, False]
    assert evaluation.summary("kl").seeds == 2
    assert evaluation.summary("kl").mean == pytest.approx(float(healthy.per_seed("kl")[[0, 2]].mean()))
    assert evaluation.warnings == ("seed 8: predictions are not finite; left out of means over seeds",)


def test_seed_frozen_by_training_is_named_with_its_step_and_left_out_of_the_mean() -> None:
    evaluation = evaluate(blurred, URN, [7, 8, 9], sequences=40, diverged={8: 412})
    assert evaluation.summary("kl").mean == pytest.approx(float(evaluation.per_seed("kl")[[0, 2]].mean()))
    assert evaluation.warnings == ("seed 8: diverged at step 412, frozen there and left out of means over seeds",)
    assert {row["diverged"] for row in evaluation.to_rows() if row["seed"] == 8} == {412}


def test_reference_scores_taken_from_an_earlier_evaluation_equal_computed_ones() -> None:
    first = evaluate(exact, URN, [0, 5], sequences=40)
    assert_equal_scores(
        evaluate(blurred, URN, [0, 5], sequences=40, references_of=first),
        evaluate(blurred, URN, [0, 5], sequences=40),
        0.0,
    )
    for other in ({"seeds": [0, 6]}, {"sequences": 41}, {"tunnel": Urn(draws=6)}):
        request = {"tunnel": URN, "seeds": [0, 5], "sequences": 40} | other
        with pytest.raises(ValueError, match="references_of must be an evaluation of the same"):
            evaluate(blurred, **request, references_of=first)


def test_longer_tunnel_reports_trained_positions_apart() -> None:
    evaluation = evaluate(lambda inputs: blurred(inputs), URN.with_length(7), [0, 1], sequences=30, trained=5)
    kl = evaluation.predictors[MODEL].by_position["kl"]
    assert_close(evaluation.per_seed("kl", span="trained"), kl[:, :5].mean(1), 1e-12)
    assert_close(evaluation.per_seed("kl", span="beyond"), kl[:, 5:].mean(1), 1e-12)
    spans = {row["span"] for row in evaluation.to_rows()}
    assert spans == {"position", "all", "trained", "beyond"}
    assert set(evaluate(blurred, URN, [0], sequences=3).spans) == {"all"}


def test_rows_hold_every_number_once() -> None:
    evaluation = evaluate(blurred, URN, [3, 5], sequences=20)
    rows = evaluation.to_rows(step=400)
    assert len(rows) == 6 * 2 * (1 + 5)  # predictors × seeds × (overall + positions)
    keys = [(row["seed"], row["predictor"], row["span"], row["position"]) for row in rows]
    assert len(set(keys)) == len(keys)
    lookup = dict(zip(keys, rows, strict=True))
    for metric in METRICS:
        by_position = evaluation.predictors[MODEL].by_position[metric]
        assert lookup[5, MODEL, "position", 3][metric] == by_position[1, 2]
        assert lookup[3, MODEL, "all", None][metric] == pytest.approx(float(evaluation.per_seed(metric)[0]))
    assert {row["step"] for row in rows} == {400}


def test_wrong_requests_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"logits \(E, b, P, C\) = \(1, 3, 5, 4\); got \(1, 3, 5, 5\)"):
        evaluate(lambda inputs: torch.zeros(*inputs.shape, 5), URN, [0], sequences=3)
    with pytest.raises(ValueError, match="sequences must hold at least 1; got 0"):
        evaluate(blurred, URN, [0], sequences=0)
    with pytest.raises(ValueError, match="seeds must hold at least 1"):
        evaluate(blurred, URN, [])
    with pytest.raises(ValueError, match="chunk must be at least 1; got 0"):
        evaluate(blurred, URN, [0], chunk=0)


def test_interval_is_students() -> None:
    result = interval([1.0, 2.0, 4.0])
    half = 4.302652729911275 * math.sqrt(7 / 3) / math.sqrt(3)  # t quantile for 2 degrees of freedom, tables
    assert (result.mean, result.seeds) == (pytest.approx(7 / 3), 3)
    assert (result.low, result.high) == (pytest.approx(7 / 3 - half), pytest.approx(7 / 3 + half))


def test_interval_needs_two_finite_seeds() -> None:
    assert interval([1.5]) == interval([1.5, math.nan])
    assert interval([1.5]).low is None
    assert interval([math.inf, 1.0]).mean == math.inf
    assert interval([math.inf, 1.0]).low is None
    assert math.isnan(interval([math.nan]).mean)


def test_an_interval_prints_what_it_knows() -> None:
    assert str(Interval(0.00347, 0.00298, 0.00396, 3)) == "0.00347 ± 0.00049 (95 % interval, 3 seeds)"
    assert str(Interval(0.5, None, None, 1)) == "0.5 (1 seed)"
    assert str(Interval(-9e-17, None, None, 2)) == "0 (2 seeds)"
