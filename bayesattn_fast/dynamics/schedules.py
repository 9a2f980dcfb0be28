"""Learning rates of the four matrices: plain gradient descent, the EM-like schedule, and the controls between them.

EM-like: routing (w_q, w_k) and readout at the base rate, values (w_v) ten times faster, as an M-step that keeps up with
its responsibilities. Whether that is more than a larger rate is asked by speeding up every other matrix instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A name and the learning rates of w_q, w_k, w_v, w_out."""

    name: str
    method: str
    """What stays the same when the rate changes: "sgd", "em", or the name of a control."""
    base: float
    rates: tuple[float, float, float, float]


# Which of w_q, w_k, w_v, w_out are sped up.
METHODS = {
    "sgd": (),
    "em": (2,),
    "query": (0,),
    "key": (1,),
    "routing": (0, 1),
    "readout": (3,),
}
WORDS = {
    "sgd": "SGD: one rate for all",
    "em": "EM-like: values {ratio:g}× faster",
    "query": "control: w_q {ratio:g}× faster",
    "key": "control: w_k {ratio:g}× faster",
    "routing": "control: w_q and w_k {ratio:g}× faster",
    "readout": "control: w_out {ratio:g}× faster",
}


def schedule(method: str, base: float, ratio: float = 10.0) -> Schedule:
    """The schedule of a method at a base rate."""
    rates = [base * (ratio if i in METHODS[method] else 1.0) for i in range(4)]
    return Schedule(f"{method} {base:g}", method, base, (rates[0], rates[1], rates[2], rates[3]))


def schedules(
    rates: Sequence[float], ratio: float = 10.0, methods: Sequence[str] = tuple(METHODS)
) -> tuple[Schedule, ...]:
    """SGD and EM-like at every rate, the controls at the lowest, as far as `methods` names them.

    ValueError for rates that are not positive, unknown methods, or methods without "sgd", the baseline.
    """
    unknown = [name for name in methods if name not in METHODS]
    if unknown or "sgd" not in methods:
        raise ValueError(f"methods must be sgd and others of {', '.join(METHODS)}; got {', '.join(methods)}")
    if not rates or min(rates) <= 0:
        raise ValueError(f"rates must be positive numbers; got {list(rates)}")
    if len(set(rates)) < len(rates):
        raise ValueError(f"rates must differ from each other; got {list(rates)}")
    if ratio <= 0:
        raise ValueError(f"ratio must be positive; got {ratio}")
    ordered = sorted(rates)
    both = [schedule(method, rate, ratio) for rate in ordered for method in ("sgd", "em") if method in methods]
    return (
        *both,
        *(
            schedule(method, ordered[0], ratio)
            for method in METHODS
            if method in methods and method not in ("sgd", "em")
        ),
    )


def label(chosen: Schedule, ratio: float) -> str:
    """The schedule in words, with its base rate."""
    return f"{WORDS[chosen.method].format(ratio=ratio)} ({chosen.base:g})"
