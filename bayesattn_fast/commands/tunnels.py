"""bayesattn tunnels: the wind tunnels, with the sizes of their presets and what each tests."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from .. import tunnels
from ..training import PRESETS
from .parsing import parse
from .results import print_json, print_tables


@dataclass(frozen=True)
class Tunnels:
    """List the wind tunnels with the sizes of their presets and the primitive of inference that each tests."""

    json: bool = False
    """Print the list as JSON."""


def main(words: list[str]) -> int:
    flags = parse(Tunnels, words, prog="bayesattn tunnels", description=Tunnels.__doc__ or "")
    rows = [_row(name, preset) for name in tunnels.TUNNELS for preset in PRESETS]
    if flags.json:
        print_json(rows)
        return 0
    from rich import box
    from rich.table import Table

    columns = ("tunnel", "tests", "preset", "inputs", "positions", "scored", "answers", "sizes")
    table = Table(*columns, box=box.SIMPLE)
    for row in rows:
        first = row["preset"] == PRESETS[0]
        table.add_row(
            row["tunnel"] if first else "",
            row["primitive"] if first else "",
            row["preset"],
            f"{row['vocabulary']} symbols" if row["vocabulary"] else f"{row['input_size']} reals",
            str(row["length"]),
            str(row["scored"]),
            str(row["classes"]),
            ", ".join(f"{key} {value}" for key, value in row["sizes"].items() if value not in (False, 0.0)),
        )
    print_tables(table)
    return 0


def _row(name: str, preset: str) -> dict[str, Any]:
    tunnel = tunnels.preset(name, preset)
    return {
        "tunnel": name,
        "primitive": tunnel.primitive,
        "preset": preset,
        "vocabulary": tunnel.vocabulary,
        "input_size": tunnel.input_size,
        "length": tunnel.length,
        "scored": len(tunnel.positions),
        "classes": tunnel.classes,
        "sizes": dataclasses.asdict(tunnel),  # type: ignore[call-overload]
    }
