"""From words to frozen dataclasses: their fields are the flags (tyro), and every mistake is one line."""

import contextlib
import difflib
import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import tyro

T = TypeVar("T")


class UsageError(ValueError):
    """A mistake in the command line; the message is the one line that the user sees."""


def known(word: str, choices: Iterable[str], what: str) -> str:
    """`word` if it is one of `choices`; UsageError with the nearest one otherwise."""
    choices = list(choices)
    if word in choices:
        return word
    near = difflib.get_close_matches(word, choices, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"unknown {what} {word!r}{hint} (accepted: {', '.join(choices)})")


def parse(cls: type[T], words: Sequence[str], *, prog: str, description: str, default: Any = None) -> T:
    """Fill a dataclass from flags. Prints help and exits for --help; UsageError for anything that does not parse."""
    shown, kwargs = io.StringIO(), ({} if default is None else {"default": default})
    try:
        with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
            return tyro.cli(
                cls, args=list(words), prog=prog, description=description, config=(tyro.conf.OmitArgPrefixes,), **kwargs
            )
    except SystemExit as stop:
        if not stop.code:
            sys.stdout.write(shown.getvalue())
            raise
        raise UsageError(f"{_message(shown.getvalue())} (see {prog} --help)") from None


def _message(box: str) -> str:
    """What tyro's box says: title, frame and the help text of the argument left out."""
    lines = [re.sub(r"^[\s│|╭╰]+|[\s│|╮╯]+$", "", line) for line in box.splitlines()]
    lines = [line for line in lines if line and not re.fullmatch(r"[─╭╮╰╯-]+", line)]
    end = next(
        (i for i, line in enumerate(lines) if line.startswith(("Argument helptext", "For full help"))), len(lines)
    )
    text = " ".join(lines[1:end]) if end > 1 else " ".join(lines[:end])
    return re.sub(r"^Error parsing \w+: ", "", text)


def value_of(words: Sequence[str], flag: str) -> str | None:
    """The last value given to `flag`, as `--flag value` or `--flag=value`."""
    found = None
    for i, word in enumerate(words):
        if word == flag and i + 1 < len(words):
            found = words[i + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def device_of(name: str) -> torch.device:
    """The device named on the command line; the GPU where there is one and nothing is named."""
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(chosen)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device must be cpu, cuda or cuda:N; got {name!r}")
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise UsageError(f"--device {name}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices")
    return device
