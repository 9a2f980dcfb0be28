"""Associative recall: N pairs are stored, then a few keys are asked for.

N distinct keys bound to N distinct values, fresh for every sequence:
    N times: STORE k SEP v     F fillers     M times: QUERY k ?     with F // 2 fillers between queries
Tokens: 0 STORE, 1 SEP, 2 FILLER, 3 QUERY, 4 ?; keys follow from 5, then values. The answers are never shown. The value
is scored at the queried key; with `score_slot` at the ? after it, the read-out of the authors' generator.

Exact: the stored value, with certainty. Extension: each query asks, with probability `p_unseen`, for a key that was
never stored; its value is uniform over the values not stored, entropy log₂(values − N).
Primitive: random-access binding. Source: "The Bayesian Geometry of Transformer Attention", arXiv 2512.22471.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesattn_fast.kernels.elimination import native
from bayesattn_fast.kernels.philox.draws import shuffle
from bayesattn_fast.kernels.philox.reference import below
from bayesattn_fast.posteriors import recall_predictive
from bayesattn_fast.tunnels.protocol import Batch, Stream
from bayesattn_fast.tunnels.rows import Rows, at_least, at_most

STORE, SEP, FILLER, QUERY, ASK, FIRST_KEY = range(6)


@dataclass(frozen=True)
class Recall:
    """Associative recall of N = pairs among `symbols` keys and as many values, F = fillers, M = queries."""

    name: ClassVar[str] = "recall"
    primitive: ClassVar[str] = "random-access binding"

    pairs: int = 64
    symbols: int = 256
    fillers: int = 32
    queries: int = 3
    p_unseen: float = 0.0
    score_slot: bool = False

    def __post_init__(self) -> None:
        at_least(self, pairs=1, symbols=2, fillers=0, queries=1)
        if not 0.0 <= self.p_unseen <= 1.0:
            raise ValueError(f"p_unseen must lie in [0, 1]; got {self.p_unseen}")
        at_most(self, "queried keys are distinct", queries=self.pairs)
        # An unseen query needs a key of its own.
        spare = self.queries if self.p_unseen > 0 else 0
        at_most(self, "keys, stored or asked for unseen, are distinct", pairs=self.symbols - spare)

    @property
    def length(self) -> int:
        return 4 * self.pairs + self.fillers + 3 * self.queries + (self.queries - 1) * (self.fillers // 2)

    @property
    def vocabulary(self) -> int:
        return FIRST_KEY + 2 * self.symbols

    @property
    def input_size(self) -> None:
        return None

    @property
    def classes(self) -> int:
        return self.symbols

    @property
    def positions(self) -> tuple[int, ...]:
        start = 4 * self.pairs + self.fillers + (2 if self.score_slot else 1)
        return tuple(start + m * (3 + self.fillers // 2) for m in range(self.queries))

    def sample(
        self,
        seeds: Sequence[int],
        step: int,
        size: int,
        *,
        stream: Stream = Stream.TRAIN,
        first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """See Tunnel.sample. Words in order: N shuffle the values, M shuffle the pairs to choose queries from, N + M
        (N if p_unseen is 0) shuffle the keys, of which the first N are stored and key N + m is unseen query m's; where
        p_unseen > 0, M more decide which queries are unseen (word < ⌊p·2³²⌋), and M pick their values: entry
        N + below(word, values − N) of the shuffled values."""
        rows = Rows.of(seeds, step, size, stream, first, device)
        n, m = self.pairs, self.queries
        if rows.natively("elimination"):
            sizes = (n, self.symbols, self.fillers, m)
            return rows.batch(*native.recall_sample(rows.draw(), *sizes, p_unseen=self.p_unseen))
        extra = m if self.p_unseen > 0 else 0
        value_words, choice_words, key_words, unseen_words, answer_words = rows.words(2 * n + m + 3 * extra).split(
            [n, m, n + extra, extra, extra], 1
        )
        all_values, all_keys = shuffle(value_words, self.symbols), shuffle(key_words, self.symbols)
        keys, values = all_keys[:, :n], all_values[:, :n]
        chosen = shuffle(choice_words, n)[:, :m]
        queries, answers = keys.gather(1, chosen), values.gather(1, chosen)
        if extra:
            unseen = unseen_words < int(self.p_unseen * 2**32)
            free = all_values.gather(1, n + below(answer_words, self.symbols - n))
            queries = torch.where(unseen, all_keys[:, n : n + m], queries)
            answers = torch.where(unseen, free, answers)
        exact = recall_predictive(keys, values, queries, self.symbols, validate=False)
        return rows.batch(self._tokens(keys, values, queries), answers, exact.predictive, exact.entropy)

    def _tokens(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        def repeated(token: int, like: Tensor) -> Tensor:
            return torch.full_like(like, token)

        key_tokens, value_tokens = keys + FIRST_KEY, values + FIRST_KEY + self.symbols
        store = torch.stack([repeated(STORE, keys), key_tokens, repeated(SEP, keys), value_tokens], -1).flatten(1)
        asks = [repeated(QUERY, queries), queries + FIRST_KEY, repeated(ASK, queries)]
        asks += [repeated(FILLER, queries)] * (self.fillers // 2)
        pause = keys.new_full((len(keys), self.fillers), FILLER)
        return torch.cat([store, pause, torch.stack(asks, -1).flatten(1)], 1)[:, : self.length].contiguous()

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        """ "uniform over stored values": knows what was stored, not what was asked."""
        stored = batch.inputs[..., 3 : 4 * self.pairs : 4] - FIRST_KEY - self.symbols
        share = batch.predictive.new_zeros(*stored.shape[:2], self.symbols).scatter_(2, stored, 1.0 / self.pairs)
        return {"uniform over stored values": share[:, :, None].repeat(1, 1, self.queries, 1)}

    def with_length(self, scored: int) -> Self:
        return replace(self, queries=scored)
