"""The code on a page: its Python and console blocks, in order, with what each is said to print."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DECIMAL = re.compile(r"[−-]?\d+(\.\d+(e[−-]?\d+)?|e[−-]?\d+)")
NUMBER = re.compile(r"[−-]?(\d[\d,]*(\.\d+)?(e[−-]?\d+)?|∞)|–")


@dataclass(frozen=True)
class Block:
    """One fenced block; shows is the text block right behind it, None where there is none."""

    kind: str
    code: str
    line: int
    shows: str | None


@dataclass(frozen=True)
class Command:
    """One line of a console block and the lines that follow it."""

    words: list[str]
    line: str
    shows: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page but those that Sphinx acts on."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    made = []
    for i, match in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else None
        adjacent = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
        shows = after[2] if after is not None and adjacent else None
        made.append(Block(match[1], match[2], text[: match.start()].count("\n") + 2, shows))
    return made


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    made: list[Command] = []
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        line, _, shows = part.partition("\n")
        made.append(Command(shlex.split(line, comments=True), line, shows))
    return made


def words_of(text: str, numbers: re.Pattern[str]) -> list[str]:
    """The words of a text without rules and with # for its numbers: two runs of one kind agree in them."""
    return numbers.sub("#", re.sub(r"[─━╭╮╰╯│]+", " ", text)).split()


def decimals(text: str) -> list[float]:
    """The numbers of a text that have a point or an exponent."""
    return [float(found.group().replace("−", "-")) for found in DECIMAL.finditer(text)]
