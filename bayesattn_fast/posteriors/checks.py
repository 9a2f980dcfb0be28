"""Argument checks shared by the posteriors: each raises one sentence that names the argument and what is accepted."""

import torch
from torch import Tensor


def shapes(**arguments: tuple[Tensor, str]) -> dict[str, int]:
    """Check tensors against shape letters and return the sizes.

    `shapes(transition=(P, "B S S"), emission=(E, "B S O"))`: the first argument with a letter sets its size, and every
    size is at least 1, the batch B at least 0. Raises ValueError naming the argument, its shape and the expected one.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, letters) in arguments.items():
        expected = letters.split()
        fits = tensor.dim() == len(expected) and all(
            size >= (letter != "B") and sizes.setdefault(letter, size) == size
            for letter, size in zip(expected, tensor.shape, strict=True)
        )
        if not fits:
            known = ", ".join(f"{letter} = {sizes[letter]}" for letter in dict.fromkeys(expected) if letter in sizes)
            raise ValueError(
                f"{name} must have shape ({', '.join(expected)}){f' with {known}' if known else ''}; "
                f"got {tuple(tensor.shape)}"
            )
    return sizes


def floating(**arguments: Tensor) -> None:
    """Every argument has one floating dtype; TypeError otherwise."""
    dtypes = {name: tensor.dtype for name, tensor in arguments.items()}
    if len(set(dtypes.values())) > 1 or not next(iter(dtypes.values())).is_floating_point:
        given = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise TypeError(f"expected one floating dtype for all arguments; got {given}")


def probability_rows(name: str, rows: Tensor, tolerance: float = 1e-4) -> None:
    """No entry is negative or NaN and every row of the last axis sums to 1 within `tolerance`."""
    refuse(~(rows >= 0), f"{name} must hold probabilities ≥ 0", rows, "entry")
    totals = rows.sum(-1)
    refuse(~((totals - 1.0).abs() <= tolerance), f"rows of {name} must sum to 1 within {tolerance:g}", totals, "row")


def finite(name: str, values: Tensor) -> None:
    """No entry is NaN or infinite."""
    refuse(~values.isfinite(), f"{name} must be finite", values, "entry")


def symbols(name: str, values: Tensor, limit: int, lowest: int = 0, meaning: str = "") -> None:
    """Integers in [lowest, limit); ValueError naming sequence and position of the first that is not."""
    if values.dtype != torch.int64:
        raise TypeError(f"{name} must be int64; got {values.dtype}")
    refuse((values < lowest) | (values >= limit), f"{name} must lie in [{lowest}, {limit}){meaning}", values)


def distinct(name: str, values: Tensor) -> None:
    """No value occurs twice in a row of values (B, N)."""
    order = values.sort(-1)
    repeated = torch.zeros_like(values, dtype=torch.bool)
    repeated.scatter_(-1, order.indices[..., 1:], order.values[..., 1:] == order.values[..., :-1])
    refuse(repeated, f"{name} must be distinct within a sequence", values)


def possible(name: str, log_likelihood: Tensor, observations: Tensor) -> None:
    """No observation (B, T) has probability zero given the ones before it."""
    refuse(log_likelihood.isneginf(), f"{name} must have positive probability given those before", observations)


def positive(**arguments: float) -> None:
    """Every number is > 0 and finite."""
    for name, value in arguments.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite; got {value}")


def refuse(bad: Tensor, rule: str, values: Tensor, place: str = "sequence position") -> None:
    """Raise ValueError for the first entry that is bad; `place` names the axes from the left, or one word for all."""
    if bool(bad.any()):
        where = torch.nonzero(bad)[0].tolist()
        words = place.split()
        named = len(words) == len(where)
        at = (
            ", ".join(map(" ".join, zip(words, map(str, where), strict=True)))
            if named
            else f"{words[0]} {tuple(where)}"
        )
        value = values[tuple(where)].item()
        raise ValueError(f"{rule}; {at} is {value:.6g}" if values.is_floating_point() else f"{rule}; {at} is {value}")
