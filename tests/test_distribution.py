"""What is shipped: a wheel with one top-level package, kernels and sources inside, that runs outside the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that building leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignored)
        else:
            checkout.mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(folder.glob("*.whl"))


SHIPPED = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "bayesattn_fast", "kernels")


def test_a_wheel_holds_one_package_with_every_kernel_source(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"bayesattn_fast"}
    sources = [path for path in (ROOT / "kernels").rglob("*") if path.suffix in (".cpp", ".h", ".py")]
    assert sources
    for source in sources:
        assert f"bayesattn_fast/kernels/{source.relative_to(ROOT / 'kernels')}" in names
    for path in ("report/page.html", "py.typed"):
        assert f"bayesattn_fast/{path}" in names


def test_an_installed_wheel_trains_and_reports_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    flags = [
        "--layers",
        "1",
        "--d-model",
        "16",
        "--batch",
        "8",
        "--steps",
        "3",
        "--eval-sequences",
        "16",
        "--out",
        "run",
    ]
    command = [sys.executable, "-P", "-m", "bayesattn_fast", "train", "bijection", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    where = [sys.executable, "-P", "-c", "import bayesattn_fast; print(bayesattn_fast.__file__)"]
    shown = subprocess.run(where, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True).stdout
    assert Path(shown.strip()).is_relative_to(site)
