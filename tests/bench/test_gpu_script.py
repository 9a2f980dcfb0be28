"""bench/gpu.sh stops cleanly where there is no card."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu.sh"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_exits_with_3(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, env=environment)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no CUDA device" in done.stderr
    assert not (tmp_path / "out").exists()
