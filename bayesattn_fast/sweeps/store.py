"""The folder of a sweep: manifest.json, one Parquet file in shards/ for each finished pack, packs/ for unfinished ones.

A shard appears whole or not at all and says which cell and seeds it holds, so that what is missing can be told from
the files alone.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..storage import holds_nothing, read_json, table_about, write_atomically, write_json
from ..training.run import environment
from .file import Sweep
from .work import Pack, cell_key

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "bayesattn-fast sweep 1"
MANIFEST, SHARDS, PACKS = "manifest.json", "shards", "packs"


@dataclass(frozen=True)
class Done:
    """What the shards of a folder hold."""

    seeds: dict[str, set[int]] = field(default_factory=dict)
    """Seeds by cell key."""
    damaged: tuple[Path, ...] = ()

    def count(self) -> int:
        return sum(map(len, self.seeds.values()))


class Store:
    """The results of one sweep on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def shards(self) -> list[Path]:
        return sorted((self.folder / SHARDS).glob("*.parquet"))

    def manifest(self) -> dict[str, Any]:
        """ValueError where the folder holds no sweep or its manifest is damaged."""
        if not self.folder.exists():
            raise ValueError(f"there is no sweep folder {self.folder}")
        path = self.folder / MANIFEST
        if not path.is_file():
            raise ValueError(f"{self.folder} is not the folder of a sweep (it has no {MANIFEST})")
        found = read_json(path)
        if not isinstance(found, dict) or found.get("format") != FORMAT or "cells" not in found:
            raise ValueError(f"{path} is not the manifest of a sweep of this version")
        return found

    def check(self, sweep: Sweep, *, resume: bool) -> None:
        """ValueError where the folder holds something else, or this sweep and resume was not said. Writes nothing.

        Cells and seeds may be added when a sweep is resumed; what is there already stays.
        """
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"--out {folder} is a file, not a folder")
        if (folder / MANIFEST).exists():
            known = {cell["key"] for cell in self.manifest()["cells"]}
            if not resume:
                raise ValueError(f"--out {folder} already holds a sweep; add --resume, or choose another folder")
            if gone := known - {cell_key(cell) for cell in sweep.cells}:
                raise ValueError(
                    f"--resume: {folder} holds {len(gone)} of {len(known)} cells that this sweep has not; "
                    "choose another folder"
                )
        elif folder.exists() and not holds_nothing(folder):
            raise ValueError(f"--out {folder} is not empty and holds no sweep; choose another folder")

    def prepare(self, sweep: Sweep, command: str) -> None:
        """Folders and manifest."""
        (self.folder / SHARDS).mkdir(exist_ok=True)
        (self.folder / PACKS).mkdir(exist_ok=True)
        write_json(self.folder / MANIFEST, self._about(sweep, command))

    def _about(self, sweep: Sweep, command: str) -> dict[str, Any]:
        cells = [
            {"key": cell_key(cell), "name": cell.name, "labels": dict(cell.labels), "config": cell.to_dict()}
            for cell in sweep.cells
        ]
        return {
            "format": FORMAT,
            "command": command,
            "git": _revision(),
            "environment": environment(),
            "seeds": list(sweep.seeds),
            "cells": cells,
        }

    def done(self) -> Done:
        """Look at every shard's header; a file that cannot be read counts as damaged."""
        seeds: dict[str, set[int]] = {}
        damaged = []
        for path in self.shards:
            try:
                for cell, found in json.loads(table_about(path)["parts"]).items():
                    seeds.setdefault(cell, set()).update(found)
            except (ValueError, KeyError):
                damaged.append(path)
        return Done(seeds, tuple(damaged))

    def set_aside(self, paths: Iterable[Path]) -> None:
        """Damaged shards, under a name that nothing reads."""
        for path in paths:
            path.rename(path.with_suffix(".damaged"))

    def write(self, pack: Pack, content: bytes) -> Path:
        path = self.folder / SHARDS / f"{pack.name}.parquet"
        write_atomically(path, lambda temporary: _write(temporary, content))
        shutil.rmtree(self.scratch(pack), ignore_errors=True)
        return path

    def scratch(self, pack: Pack) -> Path:
        """Where an unfinished pack keeps its checkpoints."""
        return self.folder / PACKS / pack.name

    def tables(self, columns: Sequence[str] | None = None) -> Iterator["pa.Table"]:
        """The shards one after another, with the named columns as far as they have them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for path in self.shards:
            try:
                with pq.ParquetFile(path) as file:
                    names = file.schema_arrow.names
                    yield file.read(columns=None if columns is None else [c for c in columns if c in names])
            except (pa.ArrowException, OSError) as error:
                reason = str(error).splitlines()[0]
                raise ValueError(f"{path} is not a readable Parquet file: {reason}; resume the sweep") from error

    def columns(self) -> list[str]:
        """Names of all columns, in order of first appearance."""
        import pyarrow.parquet as pq

        return list(dict.fromkeys(name for path in self.shards for name in pq.read_schema(path).names))

    def merge(self, path: Path) -> int:
        """Write all rows into one Parquet file, a shard at a time; returns their number."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.shards:
            raise ValueError(f"{self.folder} has no finished shards yet")
        schema = pa.unify_schemas(
            [pq.read_schema(p).remove_metadata() for p in self.shards], promote_options="permissive"
        )
        rows = 0

        def write(temporary: Path) -> None:
            nonlocal rows
            with pq.ParquetWriter(temporary, schema) as writer:
                for table in self.tables():
                    columns = [
                        table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
                        for f in schema
                    ]
                    writer.write_table(pa.table(columns, schema=schema))
                    rows += len(table)

        write_atomically(path, write)
        return rows


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _revision() -> str:
    """Git revision of the source, with a mark where it was changed since; "unknown" outside a checkout."""
    here = Path(sys.modules[__package__.split(".")[0]].__file__ or ".").parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"
