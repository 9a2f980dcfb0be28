"""Settings of a run by name, whichever part of its configuration they belong to."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from .config import RunConfig


def configure(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """`config` with settings replaced by name. ValueError for a name that no part of it has."""
    parts: dict[str, Any] = {"tunnel": config.tunnel, "model": config.model, "training": config.training}
    for name in settings:
        if not any(name in names_of(part) for part in parts.values()):
            known = sorted(set().union(*(names_of(part) for part in parts.values())))
            raise ValueError(f"unknown setting {name!r}; the settings are {', '.join(known)}")
    for key, part in parts.items():
        chosen = {name: value for name, value in settings.items() if name in names_of(part)}
        parts[key] = dataclasses.replace(part, **chosen)
    return RunConfig(parts["tunnel"], parts["model"], parts["training"], config.seeds)


def names_of(part: Any) -> set[str]:
    """The settings that a configuration class or one of its instances takes."""
    return {field.name for field in dataclasses.fields(part) if field.init}
