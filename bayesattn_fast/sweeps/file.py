"""A sweep as a TOML file: tunnels × models × settings × seeds. A list where one value is expected is an axis.

    seeds = "0:32"
    tunnels = ["bijection", "recall"]
    models = ["transformer", "lstm"]
    [settings]                # any setting of model or training, for every cell
    steps = 200
    lr = [0.001, 0.003]       # two cells for each pair
    [tunnel.bijection]        # sizes of one tunnel
    symbols = 4
    [model.lstm]              # settings of one model
    d_model = 48

or many seeds of one attention head on the sticky chain, with the settings of `bayesattn dynamics em-vs-sgd`:

    seeds = 10000
    [single_head]
    length = 64
    steps = 200
    methods = ["sgd", "em"]
"""

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..dynamics import Experiment
from ..models import BLOCKS
from ..training import PRESETS, RunConfig, parse_seeds, preset
from ..training.settings import configure, names_of
from ..tunnels import TUNNELS

KEYS = ("seeds", "preset", "tunnels", "models", "settings", "tunnel", "model", "single_head")


@dataclass(frozen=True)
class Cell:
    """One point of the product: what is trained for every seed."""

    labels: Mapping[str, Any]
    """Columns that tell the cell apart: tunnel, model, and every setting that is an axis."""
    config: RunConfig | Experiment

    @property
    def name(self) -> str:
        return ", ".join(str(v) if k in ("tunnel", "model") else f"{k} {v}" for k, v in self.labels.items())

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides the numbers of a seed, as plain values."""
        if isinstance(self.config, Experiment):
            return {"single_head": dataclasses.asdict(self.config)}
        return {key: value for key, value in self.config.to_dict().items() if key != "seeds"}

    @property
    def steps(self) -> int:
        """Optimiser steps of one seed, over all schedules of a single head."""
        if isinstance(self.config, Experiment):
            return self.config.steps * len(self.config.schedules)
        return self.config.training.steps


@dataclass(frozen=True)
class Sweep:
    """Cells and the seeds that each of them is trained with."""

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]


class SweepFileError(ValueError):
    """A sweep that cannot be: the message names the file, the line and the key."""


def read_sweep(path: Path, extra: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep in a TOML file, with top-level keys of `extra` put in its place.

    SweepFileError with file, line and key where something is unknown, empty, repeated or impossible.
    """
    if not path.is_file():
        raise ValueError(f"there is no sweep file {path}")
    text = path.read_text(encoding="utf-8")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepFileError(f"{path}: {error}") from None
    try:
        return build_sweep(_merged(data, extra or {}))
    except _Fault as fault:
        raise SweepFileError(f"{path}, line {_line(text, fault.key)}: {fault}") from None


def sweep_of(data: Mapping[str, Any]) -> Sweep:
    """The sweep described by the same keys in a dictionary."""
    try:
        return build_sweep(data)
    except _Fault as fault:
        raise SweepFileError(str(fault)) from None


class _Fault(ValueError):
    """What is wrong at one key, a dotted path."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key = key


def _merged(data: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for key, value in extra.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = {**merged[key], **value} if both else value
    return merged


def build_sweep(data: Mapping[str, Any]) -> Sweep:
    """All cells of the product; _Fault with the key otherwise."""
    for key in data:
        if key not in KEYS:
            raise _Fault(key, f"unknown key{_near(key, KEYS)}; the keys are {', '.join(KEYS)}")
    if "seeds" not in data:
        raise _Fault("seeds", "missing; a count (32), a range (0:64) or a list")
    try:
        seeds = parse_seeds(data["seeds"])
    except (ValueError, TypeError) as error:
        raise _Fault("seeds", str(error).removeprefix("seeds ")) from None
    if "single_head" in data:
        return Sweep((_head_cell(data),), seeds)
    cells = [cell for tunnel in _names(data, "tunnels", TUNNELS) for cell in _cells(data, tunnel)]
    for first, second in itertools.combinations(cells, 2):
        if first.to_dict() == second.to_dict():
            raise _Fault("settings", f"two cells are the same: {first.name}")
    return Sweep(tuple(cells), seeds)


def _names(data: Mapping[str, Any], key: str, known: Mapping[str, Any]) -> list[str]:
    if key not in data:
        raise _Fault(key, f"missing; a list of {', '.join(known)}")
    found = data[key]
    names = [found] if isinstance(found, str) else found
    if not isinstance(names, list) or not names:
        raise _Fault(key, f"must be a list of at least one of {', '.join(known)}; got {found!r}: the product is empty")
    for name in names:
        if name not in known:
            raise _Fault(key, f"unknown {key[:-1]} {name!r}{_near(name, known)} (accepted: {', '.join(known)})")
    if len(set(names)) < len(names):
        raise _Fault(key, f"names one twice: {', '.join(names)}")
    return names


def _cells(data: Mapping[str, Any], tunnel: str) -> list[Cell]:
    name = data.get("preset", "quick")
    if name not in PRESETS:
        raise _Fault("preset", f"must be one of {', '.join(PRESETS)}; got {name!r}")
    cells = []
    for kind in ("tunnel", "model"):
        # Settings of one that is not in the product are kept for the day it is.
        accepted: Mapping[str, Any] = TUNNELS if kind == "tunnel" else BLOCKS
        for other in _table(data, kind):
            if other not in accepted:
                raise _Fault(f"{kind}.{other}", f"unknown {kind}{_near(other, accepted)}")
    for model in _names(data, "models", BLOCKS):
        start = configure(preset(tunnel, name), {"model": model})
        places = {
            "settings": (_table(data, "settings"), names_of(start.model) | names_of(start.training)),
            f"tunnel.{tunnel}": (_table(_table(data, "tunnel"), tunnel, "tunnel."), names_of(start.tunnel)),
            f"model.{model}": (
                _table(_table(data, "model"), model, "model."),
                names_of(start.model) | names_of(start.training),
            ),
        }
        cells += _product(start, places, {"tunnel": tunnel, "model": model})
    return cells


def _product(
    start: RunConfig, places: Mapping[str, tuple[Mapping[str, Any], set[str]]], labels: dict[str, str]
) -> list[Cell]:
    """A cell for every combination of the listed values."""
    axes: dict[str, list[Any]] = {}
    source: dict[str, str] = {}
    for place, (values, allowed) in places.items():
        for key, value in values.items():
            if key not in allowed or key == "model":
                raise _Fault(f"{place}.{key}", f"unknown setting{_near(key, allowed)}")
            if isinstance(value, list) and not value:
                raise _Fault(f"{place}.{key}", "an empty list makes the product empty")
            if isinstance(value, list) and len(set(map(str, value))) < len(value):
                raise _Fault(f"{place}.{key}", f"names a value twice: {value}")
            axes[key], source[key] = value if isinstance(value, list) else [value], f"{place}.{key}"
    cells = []
    for chosen in itertools.product(*axes.values()):
        settings = dict(zip(axes, chosen, strict=True))
        for key, value in settings.items():
            _check_kind(source[key], value, start, key)
        try:
            config = configure(start, settings)
        except (ValueError, TypeError) as error:
            at = next((k for k in settings if re.search(rf"\b{k}\b", str(error))), next(iter(settings), "settings"))
            raise _Fault(source.get(at, at), str(error)) from None
        varied = {key: value for key, value in settings.items() if len(axes[key]) > 1}
        cells.append(Cell({**labels, **varied}, config))
    return cells


def _check_kind(place: str, value: Any, start: RunConfig, key: str) -> None:
    """A number where a number is meant: dataclasses would take text without a word."""
    part: Any = next(p for p in (start.tunnel, start.model, start.training) if key in names_of(p))
    like = getattr(part, key)
    number = isinstance(like, float) and type(value) is int
    if not number and type(value) is not type(like):
        raise _Fault(place, f"must be like {like!r}; got {value!r}")
    choices = {f.name: getattr(f.type, "__args__", ()) for f in dataclasses.fields(part)}[key]
    if choices and value not in choices:
        raise _Fault(place, f"must be one of {', '.join(map(str, choices))}; got {value!r}")


def _head_cell(data: Mapping[str, Any]) -> Cell:
    for key in data:
        if key not in ("seeds", "single_head"):
            raise _Fault(key, "does not go with single_head, which has all its settings in its own table")
    values = dict(_table(data, "single_head"))
    allowed = names_of(Experiment)
    for key, value in values.items():
        if key not in allowed:
            raise _Fault(f"single_head.{key}", f"unknown setting{_near(key, allowed)}")
        if isinstance(value, list):
            values[key] = tuple(value)
    try:
        return Cell({"tunnel": "markov", "model": "single head"}, Experiment(**values))
    except (ValueError, TypeError) as error:
        at = next((k for k in values if re.search(rf"\b{k}\b", str(error))), "")
        raise _Fault(f"single_head.{at}".rstrip("."), str(error)) from None


def _table(data: Mapping[str, Any], key: str, place: str = "") -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, Mapping):
        raise _Fault(f"{place}{key}", f"must be a table; got {value!r}")
    return value


def _near(name: str, known: Any) -> str:
    found: Sequence[str] = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {found[0]}?" if found else f" {name!r}"


def _line(text: str, key: str) -> int:
    """The line on which a dotted key is written, or that of the nearest table above it; 1 where there is none."""
    *tables, last = key.split(".")
    place, best = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            place = header[1].replace(" ", "")
            if place in (key, ".".join(tables)) or (not tables and place.split(".")[0] == key):
                best = number
        elif place == ".".join(tables) and re.match(rf"""\s*["']?{re.escape(last)}["']?\s*[=.]""", line):
            return number
    return best
