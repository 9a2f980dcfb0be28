"""How numbers are printed, everywhere the same: three significant digits, no exponent where it can be helped."""

import math
from collections.abc import Iterable


def number(value: float | None, digits: int = 3) -> str:
    """0.0123, 1.11, 7.5e-05, ∞; a dash for NaN and None; 0 for what rounding left of it."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e-9:
        return "0"
    # One digit less for the smallest keeps columns of tables narrow.
    text = f"{value:.{max(1, digits - 1)}g}" if abs(value) < 1e-3 else _fixed(value, digits)
    return text.replace("-", "−", 1) if value < 0 else text


def _fixed(value: float, digits: int) -> str:
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def listed(seeds: Iterable[int]) -> str:
    """Seeds in words: "0, 1, 2", or "0 to 63" for a long run of them."""
    numbers = list(seeds)
    if len(numbers) > 6 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
