"""The package where something is missing: a compiler, triton, a writable cache, disk space, a current torch, Linux."""

import importlib.metadata
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import bayesattn_fast
from bayesattn_fast import cli

ROOT = Path(__file__).parents[1]
TINY = ["--seeds", "1", "--steps", "4", "--warmup", "1", "--eval-sequences", "64", "--d-model", "16", "--quiet"]


def run(code: str, **environment: str) -> str:
    """What `code` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


ATTENTION = """
import torch
from bayesattn_fast import attention
q, k, v = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind()
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
assert torch.allclose(attention(q, k, v, causal=True), expected, atol=1e-6)
"""


def test_without_a_compiler_the_reference_serves(tmp_path: Path) -> None:
    says = "from bayesattn_fast import backends; print(backends.resolve.__module__)"
    run(ATTENTION + says, PATH=str(tmp_path), CXX="", BAYESATTN_CACHE=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_folder_and_said() -> None:
    code = """
from pathlib import Path
from bayesattn_fast.kernels import score
from bayesattn_fast.kernels._native import build
build._build = lambda source, library, compiler: library.write_bytes(b"") or print("built in", library.parent)
build.ctypes.CDLL = lambda path: print("loaded", path)
build.load(Path(list(score.__path__)[0]) / "native.cpp")
"""
    said = run(code, BAYESATTN_CACHE="/proc/kernels")
    assert "cannot write compiled kernels to /proc/kernels" in said
    assert "using a temporary folder" in said
    assert "built in /proc" not in said


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_import_train_and_report_without_triton_fcntl_or_a_compiler(system: str, tmp_path: Path) -> None:
    """Simulated: the name of the system, and the modules that it lacks."""
    folder = tmp_path / "Läufe auf dem Rechner"
    code = f"""
import sys, sysconfig, torch, tyro, rich.progress, pyarrow.parquet, scipy.stats, matplotlib.figure
sysconfig.get_config_vars()  # the other libraries find their own systems, and must not be fooled
sys.platform = {system!r}
sys.modules["triton"] = None
if {system!r} == "win32":
    sys.modules["fcntl"] = None
from bayesattn_fast import cli
sys.exit(cli.main(["train", "bijection", "--out", {str(folder)!r}, *{TINY!r}]))
"""
    run(code, PATH=str(tmp_path), CXX="", BAYESATTN_CACHE=str(tmp_path / "cache"))
    assert (folder / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("found", ["2.10.1", "1.13.0+cu117"])
def test_an_old_torch_is_refused_in_one_line(
    found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    with pytest.raises(ImportError, match=r"needs torch >= 2\.11, found"):
        bayesattn_fast.attention  # noqa: B018
    assert cli.main(["tunnels"]) == 2
    assert capsys.readouterr().err == (
        f"bayesattn: bayesattn-fast needs torch >= 2.11, found {found}: pip install --upgrade torch\n"
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train(folder).returncode == 0
    return folder


def train(folder: Path, *more: str, largest_file: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    # Coverage writes a file of its own in every process, which the limit would stop too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    words = ["train", "bijection", *TINY, "--checkpoint-every", "2", "--out", str(folder), *more]
    return subprocess.run(
        [sys.executable, "-m", "bayesattn_fast", *words],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "BAYESATTN_BACKEND": "reference"},
        cwd=folder.parent,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY)),
    )


@pytest.mark.parametrize(("largest_file", "named"), [(2_000, "metrics.parquet"), (20_000, "checkpoint.safetensors")])
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    largest_file: int, named: str, whole: Path, tmp_path: Path
) -> None:
    """A limit on the size of a file stands for the disk: the write that passes it fails half way."""
    folder = tmp_path / "full"
    full = train(folder, largest_file=largest_file)
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1
    assert named in full.stderr
    assert "File too large" in full.stderr
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]

    assert train(folder, "--resume").returncode == 0
    assert (folder / "metrics.parquet").read_bytes() == (whole / "metrics.parquet").read_bytes()
    assert json.loads((folder / "state.json").read_text())["finished"]
