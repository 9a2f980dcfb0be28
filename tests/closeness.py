"""One tolerance for all tests: compare with float64, allow what the precision itself costs."""

import torch
from torch import Tensor


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """‖actual − exact‖ / ‖exact‖ in float64; the plain norm of actual where exact is all zero."""
    exact = exact.detach().to(torch.float64).cpu()
    actual = actual.detach().to(torch.float64).cpu()
    assert actual.shape == exact.shape, f"shape {tuple(actual.shape)}, expected {tuple(exact.shape)}"
    same_infinite = (exact == actual) & exact.isinf()
    difference = torch.where(same_infinite, 0.0, actual - exact)
    size = torch.where(exact.isinf(), 0.0, exact).norm()
    return float(difference.norm() / (size if size > 0 else 1.0))


def assert_close(actual: Tensor, exact: Tensor, tolerance: float, name: str = "result") -> None:
    """Fail with the first mismatches and their indices when the relative error exceeds `tolerance`."""
    error = relative_error(actual, exact)
    if error <= tolerance:  # NaN fails this comparison too
        return
    a, e = actual.detach().double().cpu(), exact.detach().double().cpu()
    bad = torch.nonzero(~((a - e).abs() <= tolerance * e.abs().clamp_min(e.abs().mean())))[:5].tolist()
    lines = "\n".join(f"  {tuple(i)}: {a[tuple(i)]:.9g}, expected {e[tuple(i)]:.9g}" for i in bad)
    raise AssertionError(f"{name}: relative error {error:.3g} > {tolerance:.3g}\n{lines}")


def assert_as_good_as_plain(actual: Tensor, plain: Tensor, exact: Tensor, name: str = "result") -> None:
    """A kernel's error may be twice that of the plain implementation in the same precision, plus one rounding."""
    rounding = torch.finfo(actual.dtype).eps
    assert_close(actual, exact, 2 * relative_error(plain, exact) + rounding, name)
