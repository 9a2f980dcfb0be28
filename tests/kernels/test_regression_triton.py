"""The Triton kernel of regression: float64 inside, as the reference when interpreted, compiled without spills."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bayesattn_fast.backends import backend
from bayesattn_fast.kernels._triton import compile as gpu
from bayesattn_fast.kernels.regression import forward
from bayesattn_fast.posteriors import RegressionPredictive, regression_predictive
from tests.closeness import assert_close
from tests.interpreter import interpreted, only_result

HERE = "tests.kernels.test_regression_triton"


def public_regression(*inputs: Tensor, **options: float) -> RegressionPredictive:
    """posteriors.regression_predictive by the Triton back end, for the interpreter's process."""
    with backend("triton"):
        return regression_predictive(*inputs, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "length", "d", "bins", "tau", "sigma"),
    [(3, 4, 4, 64, 1.0, 0.5), (1, 1, 1, 2, 1.0, 0.5), (2, 6, 3, 10, 100.0, 1e-3), (300, 2, 2, 5, 1.0, 1.0)],
)
def test_regression_of_triton_equals_the_reference(
    batch: int, length: int, d: int, bins: int, tau: float, sigma: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(batch, length, d, generator=generator), torch.randn(batch, 1, d, generator=generator)
    y = (tau * w * x).sum(-1) + sigma * torch.randn(batch, length, generator=generator)
    options = {"tau": tau, "sigma": sigma, "bins": bins}
    found, launches = interpreted(HERE, "public_regression", x, y, **options)
    assert [launch.kernel for launch in launches] == ["regression_kernel"]
    with backend("reference"):
        exact = regression_predictive(x.double(), y.double(), **options)  # type: ignore[arg-type]
    for name, f, e in zip(found._fields, found, exact, strict=True):
        # A predictive far narrower than a bin has next to no entropy.
        if name != "entropy" or (f.double() - e).abs().max() > 1e-6:
            assert_close(f, e, 1e-6 if name == "mean" else 1.2e-7, name)


def test_the_error_function_is_exact_far_into_its_tail() -> None:
    x = torch.linspace(-7, 26, 1024, dtype=torch.float64)
    found, exact = only_result("tests.kernels.erfc", "evaluate", x), torch.special.erfc(x) / 2
    # 3e-14 from the polynomial, and the interpreter's multiply-add rounds twice: e^(−x²) loses x² roundings.
    assert ((found - exact).abs() <= (4e-14 + 2.3e-16 * x.square()) * exact).all()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"bayesattn-triton-{os.getuid()}"))


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_regression_compiles_without_spills_or_float_atomics(capability: int) -> None:
    def meta(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    sizes = ((64, 4, 64), (4096, 4, 64), (64, 8, 64), (64, forward.MOST_DIMENSIONS, 64), (64, 4, forward.MOST_CLASSES))
    with gpu.compile_only(capability) as kernels:
        for batch, d, bins in sizes:
            forward.regression(meta(batch, 32, d), meta(batch, 32), 1.0, 0.5, [0.1 * c for c in range(bins - 1)])
            assert forward.takes(d, bins)
    assert len(kernels) == len(sizes)
    for kernel in kernels:
        usage = gpu.usage(kernel)
        print(f"sm_{capability} {kernel.name} {kernel.config} registers {usage.registers} shared {usage.shared}")
        assert (usage.spills, usage.stack, usage.local, usage.atomics) == (0, 0, 0, 0), kernel.config
