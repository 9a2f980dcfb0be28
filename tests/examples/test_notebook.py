"""The notebook runs from top to bottom, and what is stored in it is what it prints."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayesattn_fast.tunnels import PRESETS, TUNNELS
from tests.docs.pages import NUMBER, words_of
from tests.examples.loading import EXAMPLES

NOTEBOOK = EXAMPLES / "first_tunnel.ipynb"
CELLS: list[dict[str, Any]] = [
    cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
]


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield
    for names in (TUNNELS, *PRESETS.values()):
        names.pop("coin", None)  # type: ignore[attr-defined]
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def stored(cell: dict[str, Any]) -> str:
    """What the cell printed when it was run."""
    return "".join("".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream")


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive:UserWarning")
def test_the_cells_run_in_order_and_print_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        # Outside of a notebook there is no %pip; here the package is installed.
        code = "".join(cell["source"]).replace("%pip install", "raise SystemExit #").replace("STEPS = 600", "STEPS = 8")
        capsys.readouterr()
        exec(compile(code, f"cell {number}", "exec"), names)
        assert words_of(capsys.readouterr().out, NUMBER) == words_of(stored(cell), NUMBER), f"cell {number}"
    assert names["STEPS"] == 8


def test_the_notebook_was_run_as_a_whole_without_errors_or_paths_of_a_machine() -> None:
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert str(Path.home()) not in json.dumps([output.get("text") for output in outputs])


def test_the_stored_scores_beat_the_references_that_read_no_context() -> None:
    (printed,) = [stored(cell) for cell in CELLS if "run = ba.train" in "".join(cell["source"])]
    kl = {line[:20].strip(): float(line[24:].split()[0]) for line in printed.splitlines()}
    assert kl["model"] < 0.1 * min(kl[name] for name in ("uniform", "best constant", "best position-only"))
