"""The folder of a reproduction: EXPERIMENT.json, claims.csv, table2.csv, figures/, report.html; runs/ beside them.

The page is made of all results in the folder, so that experiments can be computed one at a time.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..storage import read_json, write_json, write_text
from ..training.run import environment
from . import table2
from .cells import cells
from .claims import Claim
from .experiments import EXPERIMENTS
from .figures import save
from .page import all_claims, write_page
from .trainer import finished


def compute(name: str, scale: str, seeds: tuple[int, ...], runs: Path, folder: Path) -> None:
    """Compute one experiment from the runs and keep its numbers. ValueError where nothing that it needs is trained."""
    needed = [c for c in cells(scale, seeds) if (c.tunnel, c.architecture) in EXPERIMENTS[name].needs]
    if needed and not any(finished(cell, runs) for cell in needed):
        raise ValueError(f"nothing that {name} needs is trained in {runs}; run it without --no-train")
    result = EXPERIMENTS[name].compute(scale, seeds, runs)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", result)


def write_results(folder: Path, command: str) -> tuple[Path, list[Claim]]:
    """Draw the figures and write tables and page of everything computed in the folder; the page and its claims."""
    results = {name: read_json(folder / f"{name}.json") for name in EXPERIMENTS if (folder / f"{name}.json").exists()}
    for name, result in results.items():
        for key, make in EXPERIMENTS[name].figures.items():
            save(lambda make=make, result=result: make(result), folder / "figures" / f"{name}-{key}.png")  # type: ignore[misc]
    found = all_claims(results)
    write_csv(folder / "claims.csv", [{"experiment": name, **claim.as_json()} for name, claim in found])
    if "table2" in results:
        write_csv(folder / "table2.csv", _table2_rows(results["table2"]))
    return write_page(results, folder, command, environment()), [claim for _, claim in found]


def _table2_rows(result: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for cell in result["cells"]:
        row = {key: cell[key] for key in ("tunnel", "architecture", "layers", "d_model", "parameters", "steps")}
        row |= {"primitive": cell["primitive"], "published": cell["published"]}
        for metric in table2.SHOWN:
            scores = cell["metrics"][metric]
            row |= {metric: scores["mean"], f"{metric}_low": scores["low"], f"{metric}_high": scores["high"]}
        yield row
        for name, scores in cell["references"].items():
            if cell["architecture"] == "transformer":
                yield {"tunnel": cell["tunnel"], "architecture": name, **{m: scores[m] for m in table2.SHOWN}}


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows as CSV, columns in the order of first appearance."""
    rows = list(rows)
    names: Sequence[str] = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
