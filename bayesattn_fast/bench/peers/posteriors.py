"""What others do for the same posteriors and data: loops as in a paper's script, vectorised torch, hmmlearn, dynamax.

The loops draw and filter one sequence at a time with NumPy scalars and lists, as the description of the task in
arXiv 2512.22471 reads; the numbers they make are checked by nothing, they are here to be timed.
"""

import math
import os
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def torch_filter(transition: Tensor, emission: Tensor, observations: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Posterior, predictive, log evidence and entropy, all sequences at once, step by step."""
    batch, length = observations.shape
    states = transition.shape[-1]
    likelihood = emission.mT.gather(1, observations[..., None].expand(batch, length, states))
    prior = transition.new_full((batch, states), 1 / states)
    beliefs, evidence = [], transition.new_zeros(batch)
    for t in range(length):
        joint = prior * likelihood[:, t]
        total = joint.sum(-1, keepdim=True)
        beliefs.append(joint / total)
        evidence = evidence + total.squeeze(-1).log()
        prior = torch.einsum("br,brs->bs", beliefs[-1], transition)
    posterior = torch.stack(beliefs, 1)
    predictive = posterior @ transition @ emission
    return posterior, predictive, evidence, torch.special.entr(posterior).sum(-1) / math.log(2)


def torch_gaussian_filter(x: Tensor, means: Tensor, transition: Tensor, noise: float) -> tuple[Tensor, ...]:
    """Posterior, predictive of the next state, log evidence and its entropy, inputs seen through Gaussian noise."""
    squared = (x[:, :, None] - means).square().sum(-1)
    log_likelihood = -0.5 * (squared / noise**2 + x.shape[-1] * math.log(2 * math.pi * noise**2))
    log_prior = transition.new_full((len(x), len(means)), -math.log(len(means)))
    beliefs, evidence = [], transition.new_zeros(len(x))
    for t in range(x.shape[1]):
        joint = log_prior + log_likelihood[:, t]
        total = joint.logsumexp(-1, keepdim=True)
        beliefs.append((joint - total).exp())
        evidence = evidence + total.squeeze(-1)
        log_prior = (beliefs[-1] @ transition).log()
    posterior = torch.stack(beliefs, 1)
    predictive = posterior @ transition
    return posterior, predictive, evidence, torch.special.entr(predictive).sum(-1) / math.log(2)


def hmmlearn_filter(transition: Tensor, emission: Tensor, observations: Tensor) -> Callable[[], Tensor]:
    """Log evidence, one model a sequence through hmmlearn's public score_samples, which smooths too."""
    from hmmlearn.hmm import CategoricalHMM

    p, e, seen = transition.double().numpy(), emission.double().numpy(), observations.numpy()
    states = p.shape[-1]

    def run() -> Tensor:
        evidence = []
        for b in range(len(seen)):
            model = CategoricalHMM(n_components=states)
            model.n_features = e.shape[-1]
            model.startprob_, model.transmat_, model.emissionprob_ = np.full(states, 1 / states), p[b], e[b]
            evidence.append(model.score_samples(seen[b, :, None])[0])
        return torch.tensor(evidence)

    return run


def dynamax_filter(transition: Tensor, emission: Tensor, observations: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """dynamax's hmm_filter, jit and vmap, with predictive and entropy. ImportError where it is not installed.

    jax takes one thread where torch has one, unless it was imported before.
    """
    if torch.get_num_threads() == 1 and "jax" not in sys.modules:
        one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {one_thread}".strip()
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model.inference import hmm_filter

    def one(p, e, seen):  # type: ignore[no-untyped-def]
        initial = jnp.full(p.shape[0], 1 / p.shape[0])
        found = hmm_filter(initial, p, jnp.log(e[:, seen].T))
        belief = found.filtered_probs
        return belief, belief @ p @ e, found.marginal_loglik, -(belief * jnp.log2(belief)).sum(-1)

    compiled = jax.jit(jax.vmap(one))
    arrays = [jnp.asarray(x.numpy()) for x in (transition, emission, observations)]

    def run() -> tuple[Tensor, ...]:
        # numpy's view of a jax array may not be written to, which torch warns of; what is compared is only read.
        return tuple(torch.utils.dlpack.from_dlpack(x) for x in jax.block_until_ready(compiled(*arrays)))

    return run


def _row(rng: np.random.Generator, entries: int) -> np.ndarray:
    """Dirichlet(1, …), floored at 0.05, in hundredths that sum to 100."""
    p = np.maximum(rng.dirichlet(np.ones(entries)), 0.05)
    cents = [round(100 * v / p.sum()) for v in p]
    cents = [max(5, c) for c in cents]
    while sum(cents) > 100:
        cents[cents.index(max(cents))] -= 1
    while sum(cents) < 100:
        cents[cents.index(min(cents))] += 1
    return np.array(cents) / 100


def loop_hmm(rng: np.random.Generator, states: int = 5, symbols: int = 5, length: int = 20) -> tuple[object, ...]:
    """One HMM sequence: matrices, walk, tokens, and the normalised forward recursion at every step."""
    transition = np.array([_row(rng, states) for _ in range(states)])
    emission = np.array([_row(rng, symbols) for _ in range(states)])
    state, observations = int(rng.integers(states)), []
    for _ in range(length):
        observations.append(int(rng.choice(symbols, p=emission[state])))
        state = int(rng.choice(states, p=transition[state]))
    tokens = [96, *(round(100 * v) - 5 for v in transition.flat), 97, *(round(100 * v) - 5 for v in emission.flat), 98]
    for o in observations:
        tokens += [99, 100 + o]
    belief, posteriors, entropies = np.full(states, 1 / states), [], []
    for t, o in enumerate(observations):
        if t > 0:
            belief = belief @ transition
        belief = belief * emission[:, o]
        belief = belief / belief.sum()
        posteriors.append(belief)
        entropies.append(float(-np.sum(belief * np.log2(belief + 1e-12))))
    return tokens, np.array(posteriors), entropies


def loop_bijection(rng: np.random.Generator, symbols: int = 20, pairs: int = 19) -> tuple[object, ...]:
    """One bijection sequence with its predictive at every key."""
    pi, keys = rng.permutation(symbols), rng.permutation(symbols)[:pairs]
    tokens, predictive, entropies = [], np.zeros((pairs, symbols)), []
    free = set(range(symbols))
    for k, key in enumerate(keys):
        predictive[k, list(free)] = 1 / len(free)
        entropies.append(math.log2(len(free)))
        tokens += [int(key), symbols + int(pi[key])]
        free.discard(int(pi[key]))
    return tokens[:-1], predictive, entropies


def torch_bijections(batch: int, symbols: int = 20, pairs: int = 19) -> tuple[Tensor, ...]:
    """Permutations by sorting noise, predictives by a cumulative count: all sequences at once."""
    pi, keys = (torch.rand(batch, symbols).argsort(1) for _ in range(2))
    keys = keys[:, :pairs]
    values = pi.gather(1, keys)
    tokens = torch.stack([keys, values + symbols], -1).flatten(1)[:, :-1]
    used = torch.nn.functional.one_hot(values, symbols).cumsum(1) - torch.nn.functional.one_hot(values, symbols)
    left = symbols - torch.arange(pairs)
    return tokens, values, (1.0 - used) / left[:, None], left.float().log2().expand(batch, pairs)


def torch_eliminations(values: Tensor, symbols: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Predictive (B, L, V) and entropy (B, L) in bits before each of the values (B, L), no key seen twice."""
    shown = torch.nn.functional.one_hot(values, symbols)
    used = shown.cumsum(1) - shown
    left = (symbols - torch.arange(values.shape[1], device=values.device)).to(dtype)
    return (1 - used).to(dtype) / left[:, None], left.log2().expand(values.shape)


def torch_recall(keys: Tensor, values: Tensor, queries: Tensor, symbols: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Predictive (B, M, V) and entropy (B, M) in bits of the values of `queries`: stored, or any not stored."""
    match = (queries[:, :, None] == keys[:, None, :]).to(dtype)
    shown = torch.nn.functional.one_hot(values, symbols).to(dtype)
    known, free = match.sum(-1), 1 - shown.sum(1)
    left = symbols - keys.shape[1]
    predictive = match @ shown + (1 - known)[..., None] * free[:, None] / max(left, 1)
    return predictive, (1 - known) * math.log2(max(left, 1))


def torch_regression(x: Tensor, y: Tensor, tau: float, sigma: float, edges: Tensor) -> tuple[Tensor, ...]:
    """Posterior of the weights by a batched linalg.solve at every position, then bins and their entropy."""
    batch, length, d = x.shape
    precision = torch.eye(d, dtype=x.dtype).expand(batch, d, d) / tau**2
    moment = x.new_zeros(batch, d)
    means, variances = [], []
    for k in range(length):
        solved = torch.linalg.solve(precision, torch.stack([moment, x[:, k]], -1))
        means.append((solved[..., 0] * x[:, k]).sum(-1))
        variances.append(sigma**2 + (solved[..., 1] * x[:, k]).sum(-1))
        precision = precision + x[:, k, :, None] * x[:, k, None, :] / sigma**2
        moment = moment + x[:, k] * y[:, k, None] / sigma**2
    mean, variance = torch.stack(means, 1), torch.stack(variances, 1)
    below = torch.special.ndtr((edges - mean[..., None]) / variance[..., None].sqrt())
    ends = torch.zeros_like(below[..., :1])
    p = torch.cat([ends, below, ends + 1], -1).diff()
    return mean, variance, p, torch.special.entr(p).sum(-1) / math.log(2)


def torch_scores(logits: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    """Loss, model entropy, KL and TVD of every row."""
    log_q = logits.log_softmax(-1)
    q = log_q.exp()
    loss = -(p * log_q).sum(-1)
    entropy, floor = torch.special.entr(q).sum(-1), torch.special.entr(p).sum(-1)
    return loss, entropy / math.log(2), (loss - floor) / math.log(2), (p - q).abs().sum(-1) / 2
