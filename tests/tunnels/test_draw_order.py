"""The draw orders promised in the samplers' docstrings, followed word by word in plain Python integers.

They are a contract: data are the same on every back end and in every later version, or a version says so.
"""

import itertools
import math
from fractions import Fraction

import pytest

from bayesattn_fast.tunnels import Bijection, Hmm, Markov, Recall, Regression, Stream
from tests.kernels.test_philox import plain_philox, slow_repair

SEED, STEP, SEQUENCE = 2**33 + 5, 17, 4


class Words:
    """The words of one sequence, taken in order."""

    def __init__(self, stream: Stream = Stream.HELD_OUT, seed: int = SEED, step: int = STEP, sequence: int = SEQUENCE):
        self.counter, self.key, self.taken = [sequence, step, int(stream)], [seed % 2**32, seed >> 32], 0

    def word(self) -> int:
        block, place = divmod(self.taken, 4)
        self.taken += 1
        return plain_philox([block, *self.counter], self.key)[place]

    def below(self, n: int) -> int:
        return self.word() * n // 2**32

    def shuffle(self, n: int, take: int) -> list[int]:
        items = list(range(n))
        for i in range(take):
            j = i + self.below(n - i)
            items[i], items[j] = items[j], items[i]
        return items

    def normals(self, pairs: int) -> list[float]:
        drawn: list[float] = []
        for _ in range(pairs):
            u, t = (((self.word() >> 9) + 0.5) / 2**23 for _ in range(2))
            radius = math.sqrt(-2 * math.log(u))
            drawn += [radius * math.cos(2 * math.pi * t), radius * math.sin(2 * math.pi * t)]
        return drawn

    def hundredths(self, columns: int) -> list[int]:
        edges = [0, *sorted(self.word() for _ in range(columns - 1)), 2**32]
        parts = [max(Fraction(b - a, 2**32), Fraction(1, 20)) for a, b in itertools.pairwise(edges)]
        return slow_repair([math.floor(100 * part / sum(parts) + Fraction(1, 2)) for part in parts])

    def pick(self, row: list[int]) -> int:
        u = self.below(100)
        return next(c for c in range(len(row)) if u < sum(row[: c + 1]))


def drawn(tunnel: Bijection | Hmm | Recall | Regression | Markov) -> tuple[list, list]:
    batch = tunnel.sample([SEED], STEP, 1, stream=Stream.HELD_OUT, first=SEQUENCE)
    return batch.inputs[0, 0].tolist(), batch.targets[0, 0].tolist()


@pytest.mark.parametrize("with_replacement", [False, True])
def test_bijection_follows_its_draw_order(with_replacement: bool) -> None:
    words = Words()
    pi = words.shuffle(20, 19)
    keys = [words.below(20) for _ in range(19)] if with_replacement else words.shuffle(20, 19)[:19]
    tokens = [token for key in keys for token in (key, 20 + pi[key])][:-1]
    assert drawn(Bijection(with_replacement=with_replacement)) == (tokens, [pi[key] for key in keys])


@pytest.mark.parametrize("answer", ["state", "observation"])
def test_hmm_follows_its_draw_order(answer: str) -> None:
    words = Words()
    transition = [words.hundredths(5) for _ in range(5)]
    emission = [words.hundredths(7) for _ in range(5)]
    states, observations = [words.below(5)], []
    for _ in range(9):
        observations.append(words.pick(emission[states[-1]]))
        states.append(words.pick(transition[states[-1]]))
    tokens = [96, *(p - 5 for row in transition for p in row), 97, *(p - 5 for row in emission for p in row), 98]
    tokens += [token for o in observations[:8] for token in (99, 100 + o)]
    answers = states[:8] if answer == "state" else observations[1:]
    assert drawn(Hmm(symbols=7, observations=8, answer=answer)) == (tokens, answers)


@pytest.mark.parametrize("p_unseen", [0.0, 0.6])
def test_recall_follows_its_draw_order(p_unseen: float) -> None:
    words, asks = Words(), 4 if p_unseen else 0
    values, chosen, keys = words.shuffle(19, 7), words.shuffle(7, 4), words.shuffle(19, 7 + asks)
    unseen = [words.word() < int(p_unseen * 2**32) for _ in range(asks)] or [False] * 4
    spare = [values[7 + words.below(12)] for _ in range(asks)]
    queries = [keys[7 + m] if unseen[m] else keys[chosen[m]] for m in range(4)]
    answers = [spare[m] if unseen[m] else values[chosen[m]] for m in range(4)]
    tokens = [token for i in range(7) for token in (0, 5 + keys[i], 1, 24 + values[i])] + [2, 2]
    tokens += [token for query in queries for token in (3, 5 + query, 4, 2)]
    assert drawn(Recall(pairs=7, symbols=19, fillers=2, queries=4, p_unseen=p_unseen)) == (tokens[:-1], answers)
    assert any(unseen) == bool(p_unseen)


def test_regression_follows_its_draw_order() -> None:
    tunnel = Regression(dimensions=3, pairs=5, tau=0.8, sigma=0.3)
    normals = Words().normals(12)
    w = [0.8 * z for z in normals[:3]]
    inputs, _ = drawn(tunnel)
    for k in range(5):
        *x, noise = normals[3 + 4 * k : 7 + 4 * k]
        assert inputs[2 * k][:3] == pytest.approx(x, rel=1e-6)
        if k < 4:
            y = sum(a * b for a, b in zip(w, x, strict=True)) + 0.3 * noise
            assert inputs[2 * k + 1][3] == pytest.approx(y, rel=1e-5)


def test_markov_follows_its_draw_order() -> None:
    tunnel = Markov(symbols=6, chain=30, dimensions=3, embedding_seed=8)
    means = [Words(Stream.WORLD, 8, 0, symbol).normals(2)[:3] for symbol in range(6)]
    leave = (1 - Fraction(0.3)) / (2 + 1 + Fraction(1, 3))  # the reciprocal distances 1, ½, ⅓, ½, 1 sum to 3⅓
    row = [Fraction(0.3), *(leave * Fraction(1, d) for d in (1, 2, 3, 2, 1))]
    words = Words()
    states, inputs = [words.below(6)], []
    for _ in range(29):
        noise = words.normals(2)[:3]
        inputs.append([m + z for m, z in zip(means[states[-1]], noise, strict=True)])
        share, word = [row[(j - states[-1]) % 6] for j in range(6)], words.word()
        states.append(next(j for j in range(6) if word < round(2**32 * sum(share[: j + 1]))))
    shown, answers = drawn(tunnel)
    assert answers == states[1:]
    for got, expected in zip(shown, inputs, strict=True):
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-6)
