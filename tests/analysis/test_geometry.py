"""Every diagnostic on constructed inputs whose answer is known."""

import math

import pytest
import torch

from bayesattn_fast.analysis import (
    adjusted_rand_index,
    attention_mass,
    k_means,
    key_orthogonality,
    manifold,
    pattern,
    principal_components,
    probe_r2,
    query_key_alignment,
    random_orthogonality,
    settling,
    silhouette,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_orthonormal_keys_score_0_parallel_ones_1_and_length_does_not_matter() -> None:
    basis = torch.linalg.qr(normal(8, 8)).Q
    assert float(key_orthogonality(basis * torch.arange(1.0, 9.0)[:, None])) == pytest.approx(0, abs=1e-12)
    parallel = normal(1, 6) * torch.tensor([[1.0], [-2.0], [3.0]])
    assert float(key_orthogonality(parallel)) == pytest.approx(1)


def test_random_keys_score_the_mean_absolute_cosine_of_their_dimension() -> None:
    """√(2 / (π d)) for large d; exactly 2/π in the plane."""
    assert random_orthogonality(20, 256, draws=200) == pytest.approx(math.sqrt(2 / (math.pi * 256)), rel=0.01)
    assert random_orthogonality(4, 2, draws=20_000) == pytest.approx(2 / math.pi, rel=0.01)
    with pytest.raises(ValueError, match=r"keys must be \(…, n, d\)"):
        key_orthogonality(torch.zeros(1, 3))


def test_uniform_attention_has_the_share_of_relevant_positions() -> None:
    weights = pattern(torch.zeros(4, 3), torch.zeros(4, 3))
    relevant = torch.zeros(4, 4, dtype=torch.bool)
    relevant[3, :2] = relevant[1, 0] = True  # rows 3 and 1 see four and two positions
    assert float(attention_mass(weights, relevant)) == pytest.approx((2 / 4 + 1 / 2) / 2)
    assert math.isnan(float(attention_mass(weights, torch.zeros(4, 4, dtype=torch.bool))))


def test_a_query_equal_to_its_key_and_orthogonal_to_others_is_aligned_by_1() -> None:
    keys = torch.linalg.qr(normal(5, 5)).Q
    own = torch.eye(5, dtype=torch.bool)
    assert float(query_key_alignment(3 * keys, keys, own)) == pytest.approx(1)
    same = normal(1, 5).expand(5, 5)
    assert float(query_key_alignment(same, same, own)) == pytest.approx(0, abs=1e-12)


def test_a_planted_line_is_found_whole_and_orders_entropy_perfectly() -> None:
    place = torch.linspace(0, 1, 50, dtype=torch.float64)
    states = place[:, None] * normal(1, 7) + normal(1, 7)
    found = manifold(states, torch.exp(3 * place))
    assert found == pytest.approx((1, 1, 1))


def test_a_round_cloud_has_no_first_direction() -> None:
    states = normal(20_000, 10)
    found = manifold(states, normal(20_000, seed=1))
    assert found.first_share == pytest.approx(0.1, abs=0.01)
    assert found.participation == pytest.approx(10, rel=0.02)
    assert found.spearman < 0.03


def test_spearman_gives_ties_their_mean_rank_as_scipy_does() -> None:
    from scipy.stats import spearmanr

    states, entropy = normal(60, 1), torch.arange(60, dtype=torch.float64) // 7
    expected = abs(spearmanr(states[:, 0].numpy(), entropy.numpy()).statistic)
    assert manifold(states, entropy).spearman == pytest.approx(expected)


def test_components_are_orthogonal_and_keep_all_variance() -> None:
    scores, shares = principal_components(normal(40, 6))
    gram = scores.T @ scores
    assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-9)
    assert float(shares.sum()) == pytest.approx(1)


def five_clusters(spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(5).repeat_interleave(30)
    return 10 * torch.eye(5, dtype=torch.float64)[labels] + spread * normal(150, 5), labels


def test_five_planted_clusters_are_found_and_have_a_rand_index_of_1() -> None:
    states, labels = five_clusters(0.1)
    assert adjusted_rand_index(k_means(states, 5), labels) == pytest.approx(1)
    assert silhouette(states, labels) > 0.95
    assert adjusted_rand_index(labels, 4 - labels) == pytest.approx(1)  # names do not matter


def test_labels_that_say_nothing_have_a_rand_index_and_a_silhouette_near_0() -> None:
    states, labels = five_clusters(0.1)
    shuffled = labels[torch.randperm(150, generator=torch.Generator().manual_seed(2))]
    assert abs(adjusted_rand_index(shuffled, labels)) < 0.05
    assert silhouette(states, shuffled) < 0


def test_silhouette_by_hand() -> None:
    """Points 0, 1 | 4: a = 1, b = 4 → 3/4; a = 1, b = 3 → 2/3; alone → 0."""
    states, labels = torch.tensor([[0.0], [1.0], [4.0]]), torch.tensor([0, 0, 1])
    assert silhouette(states, labels) == pytest.approx((3 / 4 + 2 / 3) / 3)
    with pytest.raises(ValueError, match="labels must name at least 2 clusters"):
        silhouette(states, torch.zeros(3))


def test_rand_index_by_hand() -> None:
    """{0,1}{2,3} against {0,1,2}{3}: one pair together in both, expected 2·3/6 = 1."""
    assert adjusted_rand_index(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1])) == pytest.approx(0)


def test_clusters_agree_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    states, labels = five_clusters(4.0)
    found = k_means(states, 5)
    assert silhouette(states, labels) == pytest.approx(metrics.silhouette_score(states.numpy(), labels.numpy()))
    assert adjusted_rand_index(found, labels) == pytest.approx(
        metrics.adjusted_rand_score(labels.numpy(), found.numpy())
    )


def test_a_probe_reads_what_is_linear_and_nothing_from_noise() -> None:
    states = normal(400, 6)
    assert probe_r2(states, states @ normal(6, 2) + 3) == pytest.approx(1, abs=1e-6)
    assert probe_r2(states, normal(400, seed=5)) < 0.05


def test_a_frame_that_settles_early_is_told_from_an_error_that_falls_to_the_end() -> None:
    steps = [0, 10, 20, 30, 40]
    early = settling(steps, [1, 0.05, 0.02, 0.01, 0], [16, 8, 4, 2, 1])
    assert early == (10, 30, 8)
    together = settling(steps, [1, 0.5, 0.05, 0.01, 0], [16, 8, 1, 1, 1])
    assert together.frame == together.precision == 20
    assert together.left == 1
    with pytest.raises(ValueError, match="same number"):
        settling([0, 1], [1.0], [1.0])
