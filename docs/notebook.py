"""Run a notebook from top to bottom and keep what it prints and draws: `make notebook`.

    python docs/notebook.py examples/first_tunnel.ipynb

It runs in a temporary folder, so that its runs are not kept beside it. Execution times are not stored.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> None:
    """Run the notebook at `path` and write it back with its outputs. CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": folder}}, record_timing=False).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute(Path(name))
