"""What a linear map reads out of states: R² on the half of the states that it was not fitted to."""

import torch
from torch import Tensor


def probe_r2(states: Tensor, targets: Tensor, *, ridge: float = 1e-6) -> float:
    """1 − residual / total sum of squares of ridge regression with intercept, fitted on even rows, scored on odd ones.

    states (n, d), targets (n,) or (n, m). 1 where targets are linear in states; 0 or below where states say nothing.
    ridge: relative to the mean variance of the states. ValueError for fewer than four states.
    """
    if len(states) < 4 or len(states) != len(targets):
        raise ValueError(f"states and targets must have the same length of at least 4; got {len(states)}")
    x, y = states.to(torch.float64), targets.to(torch.float64).reshape(len(targets), -1)
    fit_x, fit_y, test_x, test_y = x[::2], y[::2], x[1::2], y[1::2]
    centre_x, centre_y = fit_x.mean(0), fit_y.mean(0)
    a, b = fit_x - centre_x, fit_y - centre_y
    gram = a.T @ a
    # A little ridge: states of a residual stream are often collinear to rounding.
    gram += ridge * gram.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny) * torch.eye(len(gram))
    weights = torch.linalg.solve(gram, a.T @ b)
    residual = test_y - centre_y - (test_x - centre_x) @ weights
    total = (test_y - test_y.mean(0)).square().sum()
    return float(1 - residual.square().sum() / total) if total > 0 else float("nan")
