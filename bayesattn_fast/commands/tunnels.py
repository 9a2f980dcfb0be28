"""bayesattn tunnels: the wind tunnels, with the sizes of their presets and what each tests."""

import dataclasses
import json
from dataclasses import dataclass

from .. import tunnels
from ..training import PRESETS
from .parsing import parse


@dataclass(frozen=True)
class Tunnels:
    """List the wind tunnels with the sizes of their presets and the primitive of inference that each tests."""

    json: bool = False
    """Print the list as JSON."""


def main(words: list[str]) -> int:
    flags = parse(Tunnels, words, prog="bayesattn tunnels", description=Tunnels.__doc__ or "")
    rows = [_row(name, preset) for name in tunnels.TUNNELS for preset in PRESETS]
    if flags.json:
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("tunnel", "tests", "preset", "inputs", "positions", "scored", "answers", "sizes")
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
            ", ".join(f"{key} {value}" for key, value in row["sizes"].items() if not isinstance(value, bool) or value),
        )
    Console().print(table)
    return 0


def _row(name: str, preset: str) -> dict:
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
