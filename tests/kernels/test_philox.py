"""The random numbers of all tunnels: published vectors, ranges, and laws of the draws."""

import math

import numpy as np
import pytest
import torch

from bayesattn_fast.kernels.philox import reference as ph
from bayesattn_fast.kernels.philox.draws import categorical, repair, shuffle, simplex_hundredths
from tests.closeness import assert_close

# Random123 1.x, examples/kat_vectors, philox4x32-10.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Salmon et al. (2011), in Python integers, written apart from the code under test."""
    (a, b, c, d), (k, l) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right // 2**32) ^ b ^ k, right % 2**32, (left // 2**32) ^ d ^ l, left % 2**32
        k, l = (k + 0x9E3779B9) % 2**32, (l + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def some_words(rows: int, count: int, seed: int = 3) -> torch.Tensor:
    return ph.random_words(torch.full((rows,), seed), 0, 0, torch.arange(rows), count)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_vectors(counter: str, key: str, answer: str) -> None:
    assert ph.philox(torch.tensor(words_of(counter)), torch.tensor(words_of(key))).tolist() == words_of(answer)
    assert plain_philox(words_of(counter), words_of(key)) == words_of(answer)


def test_philox_agrees_with_plain_integers_on_random_counters() -> None:
    numbers = np.random.default_rng(0).integers(0, 2**32, (300, 6), dtype=np.uint64).astype(np.int64)
    expected = [plain_philox(row[:4].tolist(), row[4:].tolist()) for row in numbers]
    assert ph.philox(torch.from_numpy(numbers[:, :4]), torch.from_numpy(numbers[:, 4:])).tolist() == expected


def test_word_w_is_output_w_mod_4_of_block_w_div_4_under_both_halves_of_the_seed() -> None:
    seed, step, stream = 5 * 2**32 + 9, 2**32 - 1, 3
    got = ph.random_words(torch.tensor([seed, 7]), stream, step, torch.tensor([2**32 - 2, 0]), 11)
    first = [word for block in range(3) for word in plain_philox([block, 2**32 - 2, step, stream], [9, 5])]
    second = [word for block in range(3) for word in plain_philox([block, 0, step, stream], [7, 0])]
    assert got.tolist() == [first[:11], second[:11]]


def test_uniform_is_strictly_inside_the_unit_interval_and_exact_in_float32() -> None:
    ends = ph.uniform(torch.tensor([0, 2**32 - 1]))
    assert ends.tolist() == [2.0**-24, 1 - 2.0**-24]
    values = ph.uniform(some_words(64, 64))
    assert torch.equal(values.float().double(), values)


def test_below_covers_its_range_and_nothing_else() -> None:
    assert ph.below(torch.tensor([0, 2**32 - 1]), 7).tolist() == [0, 6]
    counts = torch.bincount(ph.below(some_words(700, 100), 7).flatten(), minlength=7)
    assert counts.sub(10_000).abs().max() < 5 * math.sqrt(10_000 * 6 / 7)


def test_normal_is_box_muller_to_the_last_digits() -> None:
    words = some_words(200, 50)
    words[0, :4] = torch.tensor([0, 0, 2**32 - 1, 2**32 - 1])
    u = ((words >> 9).double() + 0.5) / 2**23
    radius, angle = (-2 * u[:, 0::2].log()).sqrt(), 2 * math.pi * u[:, 1::2]
    expected = torch.stack([radius * angle.cos(), radius * angle.sin()], -1).flatten(1)
    assert_close(ph.normal(words), expected, 1e-15)
    assert (ph.normal(words) - expected).abs().max() < 3e-15


def test_normals_have_the_moments_of_the_normal_law() -> None:
    draws = ph.normal(some_words(1000, 200)).flatten()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((draws**power).mean()) - moment) < 5 * math.sqrt(variance / len(draws))


def test_shuffle_makes_every_ordered_sample_equally_often() -> None:
    rows = 60_000
    drawn = shuffle(some_words(rows, 3), 5)
    assert torch.equal(drawn.sort(1).values, torch.arange(5).expand(rows, 5))
    counts = torch.bincount(drawn[:, 0] * 25 + drawn[:, 1] * 5 + drawn[:, 2])
    counts = counts[counts > 0]
    assert len(counts) == 60
    assert counts.sub(1000).abs().max() < 5 * math.sqrt(1000)


def test_shuffle_follows_its_documented_draw_order() -> None:
    words = some_words(1, 6)
    items = list(range(7))
    for i, word in enumerate(words[0].tolist()):
        j = i + word * (7 - i) // 2**32
        items[i], items[j] = items[j], items[i]
    assert shuffle(words, 7).tolist() == [items]


def test_categorical_gives_each_class_its_share_of_the_integers() -> None:
    weights = torch.tensor([5, 60, 0, 35])
    classes = categorical(torch.arange(100), weights.cumsum(0))
    assert torch.bincount(classes, minlength=4).tolist() == weights.tolist()


def slow_repair(row: list[int]) -> list[int]:
    row = [max(entry, 5) for entry in row]
    up = sorted(range(len(row)), key=lambda i: (row[i], i))
    down = sorted(range(len(row)), key=lambda i: (-row[i], i))
    turn = 0
    while sum(row) < 100:
        row[up[turn % len(row)]] += 1
        turn += 1
    turn = 0
    while sum(row) > 100:
        if row[down[turn % len(row)]] > 5:
            row[down[turn % len(row)]] -= 1
        turn += 1
    return row


@pytest.mark.parametrize("columns", [2, 3, 5, 12, 19, 20])
def test_probability_rows_are_whole_hundredths_of_at_least_5_that_sum_to_100(columns: int) -> None:
    rows = simplex_hundredths(some_words(2000, columns - 1))
    assert rows.shape == (2000, columns)
    assert (rows.sum(-1) == 100).all()
    assert rows.min() >= 5


@pytest.mark.parametrize("columns", [2, 5, 20])
def test_repair_takes_one_at_a_time_as_described(columns: int) -> None:
    wild = torch.from_numpy(np.random.default_rng(columns).integers(0, 40, (300, columns)))
    assert repair(wild).tolist() == [slow_repair(row) for row in wild.tolist()]


def test_probability_rows_match_floored_dirichlet_rows_made_with_floats() -> None:
    """19 % of entries sit exactly at 0.05 and none exceeds 0.80 on 5 columns; same mean of squares as with floats."""
    rows = simplex_hundredths(some_words(20_000, 4))
    p = np.maximum(np.random.default_rng(1).dirichlet(np.ones(5), 20_000), 0.05)
    plain = repair(torch.from_numpy(np.rint(100 * p / p.sum(1, keepdims=True)).astype(np.int64)))
    for statistic in (lambda r: (r == 5).double().mean(), lambda r: (r.double() ** 2).mean() / 1000):
        assert abs(float(statistic(rows)) - float(statistic(plain))) < 0.01
    assert abs(float((rows == 5).double().mean()) - 0.19) < 0.01
    assert rows.max() <= 80
