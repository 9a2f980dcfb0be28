"""Routing and advantage of every attention head during training, from the backward passes of the training itself.

Every `every` steps one step is recorded: its batch, its weights before the update. The statistics come out of the
kernels that run anyway, so that a watched step costs little more than another; its gradients may be rounded otherwise
in the last bit.
"""

from typing import Any

import torch
from torch import Tensor

from ..models import SequenceModel, value_rows
from ..ops.attention_record import Record

QUANTITIES = ("advantage_variance", "routing_entropy", "largest_weight", "heaviest_key", "effective_keys")
"""Means over the sequences of a batch, for each head.

advantage_variance: mean over queries of Var_α[b] for the sum of the losses of a sequence's answers, in nats²: what a
unit step on a query's scores, measured by Fisher information, would gain. routing_entropy: of α_i, in bits, mean over
queries. largest_weight: max_j α_ij, mean over queries. With R_j = Σ_i α_ij the responsibility mass of key j:
heaviest_key is max_j R_j / Σ_j R_j, and effective_keys is exp H(R / ΣR), the number of keys that share the mass.
"""
BITS = 1.4426950408889634


def check(model: SequenceModel, every: int) -> None:
    """ValueError where attention is to be watched and the model has none."""
    if every and not value_rows(model):
        raise ValueError(
            f"watch_every records attention heads, so model must be transformer; got {model.config.model}, "
            "which has none (watch_every 0 trains it)"
        )


def summarise(record: Record, seeds: int, answers: int) -> Tensor:
    """One step's record as (E, L, H, Q), L layers in the order of their calls and Q = QUANTITIES.

    answers: scored positions of a batch, by whose number each seed's loss was divided.
    """
    layers = []
    for layer in record:
        sequences = layer.rows.variance.shape[0] // seeds
        # The loss is a mean over all answers of the batch; a sequence's own sum is as many times larger.
        variance = answers**2 * layer.rows.variance.mean(2)
        mass = layer.columns.responsibility
        share = mass / mass.sum(2, keepdim=True)
        effective = -torch.special.xlogy(share, share).sum(2)
        per_head = (
            variance,
            BITS * layer.entropy.mean(2),
            layer.max_weight.mean(2),
            share.amax(2),
            effective.exp(),
        )
        layers.append(torch.stack(per_head, -1).unflatten(0, (seeds, sequences)).double().mean(1))
    return torch.stack(layers, 1).cpu()


def rows(steps: list[int], records: list[Tensor], seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """The rows of watch.parquet: one for each step, seed, layer and head."""
    return [
        {"seed": seed, "step": step, "layer": layer, "head": head, **dict(zip(QUANTITIES, values, strict=True))}
        for step, record in zip(steps, records, strict=True)
        for seed, of_seed in zip(seeds, record.tolist(), strict=True)
        for layer, of_layer in enumerate(of_seed)
        for head, values in enumerate(of_layer)
    ]
