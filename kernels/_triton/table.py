"""Which tile a kernel gets: a committed table by op, shape class and architecture, not a search at run time.

So results depend on neither timing nor machine load, and training never stops to try things out. tiles.json has a line
a row; a row of the architecture at hand comes before one of "any". `bayesattn tune` measures rows on a GPU;
BAYESATTN_TILES names a table to use in place of the committed one.
"""

import functools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

COMMITTED = Path(__file__).with_name("tiles.json")
FORMAT = 1
ANY = "any"


class Tile(NamedTuple):
    """Edges of the blocks, warps, and stages of the software pipeline, None where the op knows best.

    capped: ptxas needs to be told not to spill for the sake of one more program.
    """

    blocks: tuple[int, ...]
    warps: int
    stages: int | None = None
    capped: bool = False


class Key(NamedTuple):
    """What a row is about: op, shape class in words, and the compute capability times ten, "90", or "any"."""

    op: str
    shape: str
    architecture: str


class Asked(NamedTuple):
    """A question that a launch put to the table, its answer, and the least and largest value of each block."""

    key: Key
    tile: Tile
    bounds: tuple[tuple[int, int], ...]


_forced: dict[tuple[str, str], Tile] = {}
_listeners: list[dict[Key, Asked]] = []


def path() -> Path:
    """The table in use."""
    named = os.environ.get("BAYESATTN_TILES")
    return Path(named) if named else COMMITTED


def read(file: Path) -> dict[Key, Tile]:
    """The rows of a table. ValueError naming the file where it is not one."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, this version reads {FORMAT}")
        rows = {}
        for row in data["rows"]:
            key = Key(row["op"], row["shape"], row["architecture"])
            if key in rows:
                raise ValueError(f"two rows for {', '.join(key)}")
            rows[key] = Tile(tuple(row["blocks"]), row["warps"], row.get("stages"), row.get("capped", False))
        return rows
    except (KeyError, TypeError, json.JSONDecodeError, ValueError) as error:
        raise ValueError(f"{file} is not a table of tiles: {error}") from None


def text(rows: dict[Key, Tile], measured: dict[str, Any]) -> str:
    """A table as it is committed, a row a line; measured: by architecture, on what its rows were measured."""
    lines = [json.dumps(_plain(key, tile)) for key, tile in rows.items()]
    return f'{{\n"format": {FORMAT},\n"measured": {json.dumps(measured)},\n"rows": [\n' + ",\n".join(lines) + "\n]\n}\n"


def measured(file: Path) -> dict[str, Any]:
    """By architecture, on what the rows of a table were measured."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["measured"]
    return found


def _plain(key: Key, tile: Tile) -> dict[str, Any]:
    row: dict[str, Any] = {**key._asdict(), "blocks": list(tile.blocks), "warps": tile.warps}
    if tile.stages is not None:
        row["stages"] = tile.stages
    if tile.capped:
        row["capped"] = True
    return row


@functools.cache
def _rows(file: Path) -> dict[Key, Tile]:
    return read(file)


def find(op: str, shape: str, architecture: int) -> Tile | None:
    """The row of the architecture, else that of any; None where there is neither."""
    rows = _rows(path())
    return rows.get(Key(op, shape, str(architecture))) or rows.get(Key(op, shape, ANY))


def tile(
    op: str, shape: str, architecture: int, bounds: Iterable[tuple[int, int]], otherwise: Tile | None = None
) -> Tile:
    """The tile of a launch: forced, or the table's, or `otherwise`. KeyError where there is none of them."""
    found = _forced.get((op, shape)) or find(op, shape, architecture) or otherwise
    if found is None:
        raise KeyError(f"no tile for {op}, {shape}, compute capability {architecture / 10:g}")
    key = Key(op, shape, str(architecture))
    for heard in _listeners:
        heard[key] = Asked(key, found, tuple(bounds))
    return found


@contextmanager
def forced(op: str, shape: str, tile: Tile) -> Iterator[None]:
    """Every launch of that shape class inside the block gets `tile`."""
    before = _forced.get((op, shape))
    _forced[op, shape] = tile
    try:
        yield
    finally:
        if before is None:
            del _forced[op, shape]
        else:
            _forced[op, shape] = before


@contextmanager
def listening() -> Iterator[dict[Key, Asked]]:
    """Collect what launches inside the block ask, once for each key."""
    heard: dict[Key, Asked] = {}
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)
