"""Bijection elimination: which value does a key have, once others are taken?

A uniform permutation π of V symbols, fresh for every sequence, and L keys x_1 … x_L, distinct by default. The sequence
is x_1 π(x_1) x_2 π(x_2) … x_L: N = 2L − 1 tokens. Keys are 0 … V − 1 and values V … 2V − 1; with `shared_symbols`
both are 0 … V − 1; with `separator` a token of its own follows each pair, N = 3L − 2. The answer π(x_k) is scored at
every key position, over the V values.

Exact: p(π(x_k) = y) = 1/(V − k + 1) for every y not yet shown, entropy log₂(V − k + 1): at V = 20, L = 19 the mean is
3.2146 bits. With `with_replacement` keys may repeat, and a repeated key has a known answer.
Primitive: belief accumulation. Source: "The Bayesian Geometry of Transformer Attention", arXiv 2512.22471.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from bayesattn_fast.kernels.elimination import native
from bayesattn_fast.kernels.philox.draws import shuffle
from bayesattn_fast.kernels.philox.reference import below
from bayesattn_fast.posteriors import bijection_predictive
from bayesattn_fast.tunnels.protocol import Batch, Stream
from bayesattn_fast.tunnels.rows import Rows, at_least, at_most


@dataclass(frozen=True)
class Bijection:
    """Bijection elimination with V = symbols and L = pairs, the last of which lacks its value."""

    name: ClassVar[str] = "bijection"
    primitive: ClassVar[str] = "belief accumulation"

    symbols: int = 20
    """V: keys, and as many values."""
    pairs: int = 19
    """L: pairs shown; the last key lacks its value."""
    with_replacement: bool = False
    """Keys may repeat; a repeated key has a known answer."""
    separator: bool = False
    """A token of its own after each pair."""
    shared_symbols: bool = False
    """Keys and values are the same V tokens."""

    def __post_init__(self) -> None:
        at_least(self, symbols=2, pairs=1)
        if not self.with_replacement:
            at_most(self, "keys are distinct; with_replacement lifts this", pairs=self.symbols)

    @property
    def stride(self) -> int:
        """Tokens from one key to the next."""
        return 3 if self.separator else 2

    @property
    def length(self) -> int:
        return self.stride * (self.pairs - 1) + 1

    @property
    def vocabulary(self) -> int:
        return (1 if self.shared_symbols else 2) * self.symbols + self.separator

    @property
    def input_size(self) -> None:
        return None

    @property
    def classes(self) -> int:
        return self.symbols

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(0, self.length, self.stride))

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
        """See Tunnel.sample. Words 0 … V − 2 shuffle π; word V − 1 + k draws key k (a shuffle's step, or `below`)."""
        rows = Rows.of(seeds, step, size, stream, first, device)
        layout = {name: getattr(self, name) for name in ("separator", "shared_symbols", "with_replacement")}
        if rows.natively("elimination"):
            return rows.batch(*native.bijection_sample(rows.draw(), self.symbols, self.pairs, **layout))
        if rows.by_triton("elimination"):
            from bayesattn_fast.kernels.elimination import sample

            if self.symbols <= sample.MOST_SYMBOLS:
                return rows.batch(*sample.bijection_sample(rows.draws(), self.symbols, self.pairs, **layout))
        words = rows.words(self.symbols - 1 + self.pairs)
        pi = shuffle(words[:, : self.symbols - 1], self.symbols)
        key_words = words[:, self.symbols - 1 :]
        if self.with_replacement:
            keys = below(key_words, self.symbols)
        else:
            keys = shuffle(key_words, self.symbols)[:, : self.pairs]
        values = pi.gather(1, keys)
        exact = bijection_predictive(keys, values, self.symbols, validate=False)
        return rows.batch(self._tokens(keys, values), values, exact.predictive, exact.entropy)

    def _tokens(self, keys: Tensor, values: Tensor) -> Tensor:
        columns = [keys, values if self.shared_symbols else values + self.symbols]
        if self.separator:
            columns.append(torch.full_like(keys, self.vocabulary - 1))
        return torch.stack(columns, -1).flatten(1)[:, : self.length].contiguous()

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        """None beyond the common ones: uniform over V scores 1.107 bits of entropy error at V = 20."""
        return {}

    def with_length(self, scored: int) -> Self:
        return replace(self, pairs=scored)
