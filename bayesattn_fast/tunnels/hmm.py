"""HMM filtering: follow a belief through dynamics that are stated at the start of the sequence.

Every sequence has its own transition matrix T (S×S) and emission matrix E (S×O): rows are Dirichlet(1, …, 1), floored
at 0.05 and rounded to whole hundredths that sum to 100. The chain starts uniform and emits at once.
    [TRANS] S·S probabilities [EMIT] S·O probabilities [SEP] then K times [OBS] o_t
Probability p is token 100p − 5 (0 … 95); 96 [TRANS], 97 [EMIT], 98 [SEP], 99 [OBS]; observation o is token 100 + o.
S = O = 5: a header of 53 tokens, N = 53 + 2K, vocabulary 105.

Scored at the token of every o_t, positions header + 1 + 2t:
    answer "state"        p(s_t | o_1 … o_t), S classes; the hidden state itself is an exact sample of it
    answer "observation"  p(o_{t+1} | o_1 … o_t), O classes
both exact for the rounded matrices that the sequence shows. Mean posterior entropy at K = 20: 1.91 bits; the uniform
predictor errs by 0.41 bits.
Primitive: belief transport. Source: "The Bayesian Geometry of Transformer Attention", arXiv 2512.22471.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from bayesattn_fast.kernels.entropy.reference import entropy_bits
from bayesattn_fast.kernels.hmm import native
from bayesattn_fast.kernels.hmm.reference import discrete_likelihoods, propagate
from bayesattn_fast.kernels.philox.draws import FLOOR, TOTAL, categorical, simplex_hundredths
from bayesattn_fast.kernels.philox.reference import below
from bayesattn_fast.posteriors import hmm_filter
from bayesattn_fast.tunnels.protocol import Batch, Stream
from bayesattn_fast.tunnels.rows import Rows, at_least, at_most

TRANS, EMIT, SEP, OBS, FIRST_SYMBOL = 96, 97, 98, 99, 100
WINDOWS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Hmm:
    """HMM filtering with S = states, O = symbols and K = observations."""

    name: ClassVar[str] = "hmm"
    primitive: ClassVar[str] = "belief transport"

    states: int = 5
    symbols: int = 5
    observations: int = 20
    answer: Literal["state", "observation"] = "state"

    def __post_init__(self) -> None:
        at_least(self, states=2, symbols=2, observations=1)
        most = TOTAL // FLOOR
        at_most(self, f"every probability is at least 0.05, which leaves room for {most}", states=most, symbols=most)
        if self.answer not in ("state", "observation"):
            raise ValueError(f"answer must be 'state' or 'observation'; got {self.answer!r}")

    @property
    def header(self) -> int:
        """Tokens before the first [OBS]."""
        return 3 + self.states * (self.states + self.symbols)

    @property
    def length(self) -> int:
        return self.header + 2 * self.observations

    @property
    def vocabulary(self) -> int:
        return FIRST_SYMBOL + self.symbols

    @property
    def input_size(self) -> None:
        return None

    @property
    def classes(self) -> int:
        return self.states if self.answer == "state" else self.symbols

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(self.header + 1, self.length, 2))

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
        """See Tunnel.sample. Words in order: S·(S − 1) for T by rows, S·(O − 1) for E by rows, one for s_1, then for
        t = 1, 2, …: one for o_t, one for s_{t+1}. A longer sequence begins with the shorter one."""
        rows = Rows.of(seeds, step, size, stream, first, device)
        s, o = self.states, self.symbols
        if rows.natively("hmm"):
            return rows.batch(*native.hmm_sample(rows.draw(), s, o, self.observations, self.answer == "observation"))
        words = rows.words(s * (s + o - 2) + 2 * self.observations + 2)
        t_words, e_words, walk = words.split([s * (s - 1), s * (o - 1), 2 * self.observations + 2], 1)
        transition = simplex_hundredths(t_words.unflatten(1, (s, -1)))
        emission = simplex_hundredths(e_words.unflatten(1, (s, -1)))
        states = self._walk(transition, walk[:, 0], walk[:, 2::2])
        rows_of_e = emission.cumsum(2).gather(1, states[..., None].expand(-1, -1, o))
        observations = categorical(below(walk[:, 1::2], TOTAL), rows_of_e)
        shown = observations[:, : self.observations]
        predictive = self._answer(*self._filter(transition, emission, shown))
        targets = states[:, :-1] if self.answer == "state" else observations[:, 1:]
        tokens = self._tokens(transition, emission, shown)
        return rows.batch(tokens, targets.contiguous(), predictive, entropy_bits(predictive))

    def _walk(self, transition: Tensor, start: Tensor, words: Tensor) -> Tensor:
        """States s_1 … s_{K+1}, (R, K + 1): the successor of every state at every step first, then one lookup each."""
        successor = categorical(below(words, TOTAL)[:, :, None], transition.cumsum(2)[:, None])
        states = [below(start, self.states)[:, None]]
        for t in range(self.observations):
            states.append(successor[:, t].gather(1, states[-1]))
        return torch.cat(states, 1)

    def _tokens(self, transition: Tensor, emission: Tensor, shown: Tensor) -> Tensor:
        def special(token: int) -> Tensor:
            return shown.new_full((len(shown), 1), token)

        observed = torch.stack([torch.full_like(shown, OBS), shown + FIRST_SYMBOL], -1).flatten(1)
        probabilities = [(matrix - FLOOR).flatten(1) for matrix in (transition, emission)]
        return torch.cat([special(TRANS), probabilities[0], special(EMIT), probabilities[1], special(SEP), observed], 1)

    def decode(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Transition and emission in hundredths (R, S, S), (R, S, O) and observations (R, K) of tokens (R, N)."""
        cells = self.states**2
        transition = tokens[:, 1 : 1 + cells].unflatten(1, (self.states, -1)) + FLOOR
        emission = tokens[:, 2 + cells : self.header - 1].unflatten(1, (self.states, -1)) + FLOOR
        return transition, emission, tokens[:, self.header + 1 :: 2] - FIRST_SYMBOL

    def _filter(self, transition: Tensor, emission: Tensor, shown: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior (R, K, S), and both matrices as float64 probabilities."""
        p, e = transition.double() / TOTAL, emission.double() / TOTAL
        return hmm_filter(p, e, shown, validate=False).posterior, p, e

    def _answer(self, posterior: Tensor, transition: Tensor, emission: Tensor) -> Tensor:
        """The predictive that a belief about s_t implies about the answer."""
        if self.answer == "state":
            return posterior
        return propagate(propagate(posterior, transition[:, None]), emission[:, None])

    def reference_predictors(self, batch: Batch) -> Mapping[str, Tensor]:
        """ "one-step filter": the start carried blindly to t, times the current emission. "window w": an exact filter
        that starts uniform w observations ago; before that many, the exact posterior."""
        transition, emission, observations = self.decode(batch.inputs.flatten(0, 1))
        exact, p, e = self._filter(transition, emission, observations)
        beliefs = {"one-step filter": _one_step(p, e, observations)}
        for w in WINDOWS:
            beliefs[f"window {w}"] = _window(w, p, e, observations, exact)
        split = batch.inputs.shape[:2]
        return {name: self._answer(belief, p, e).float().unflatten(0, split) for name, belief in beliefs.items()}

    def with_length(self, scored: int) -> Self:
        return replace(self, observations=scored)


def _one_step(transition: Tensor, emission: Tensor, observations: Tensor) -> Tensor:
    prior = transition.new_full((len(transition), transition.shape[1]), 1.0 / transition.shape[1])
    priors = []
    for _ in range(observations.shape[1]):
        priors.append(prior)
        prior = propagate(prior, transition)
    joint = torch.stack(priors, 1) * discrete_likelihoods(emission, observations)
    return joint / joint.sum(-1, keepdim=True)


def _window(w: int, transition: Tensor, emission: Tensor, observations: Tensor, exact: Tensor) -> Tensor:
    if observations.shape[1] <= w:
        return exact
    windows = observations.unfold(1, w, 1)  # (R, K − w + 1, w): the last w observations at t = w, …, K
    count = windows.shape[1]
    p, e = (matrix.repeat_interleave(count, 0) for matrix in (transition, emission))
    restarted = hmm_filter(p, e, windows.flatten(0, 1), validate=False).posterior[:, -1]
    return torch.cat([exact[:, : w - 1], restarted.unflatten(0, (-1, count))], 1)
