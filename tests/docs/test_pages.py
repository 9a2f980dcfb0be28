"""The code on the pages runs as printed, in the order of the page, and prints what is printed below it.

Training is cut to a few steps, sweeps to a few seeds on this machine; numbers with a point may differ, words may not.
"""

import functools
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayesattn_fast import api, cli
from bayesattn_fast.extensions import VARIABLE
from bayesattn_fast.models import BLOCKS
from bayesattn_fast.tunnels import PRESETS, TUNNELS
from tests.docs.pages import DECIMAL, NUMBER, ROOT, Block, Command, blocks, commands, decimals, words_of

PAGES = sorted((ROOT / "docs").rglob("*.md"))
FEW = {"steps": 4, "warmup": 1, "eval_sequences": 64, "batch": 8, "eval_every": 4}
FEW_FLAGS = [word for name, value in FEW.items() for word in (f"--{name.replace('_', '-')}", str(value))]
INSTALLS = ("pip", "make", "git", "sudo", "python -m venv")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples, small ones, and nothing else; what a page registers is forgotten afterwards."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    sweep = tmp_path / "examples" / "sweep.toml"
    text = sweep.read_text(encoding="utf-8").replace('"0:8"', "2").replace("steps = 300", "steps = 20\nwarmup = 1")
    sweep.write_text(text.replace("eval_every = 100", "eval_every = 10"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "train", _in_few_steps(api.train))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.syspath_prepend(tmp_path / "examples")
    monkeypatch.setenv(VARIABLE, "")
    registries: list[dict[str, Any]] = [TUNNELS, BLOCKS, *PRESETS.values(), sys.modules]
    before = [dict(registry) for registry in registries[:-1]]
    modules = set(sys.modules)
    yield tmp_path
    for registry, kept in zip(registries, before, strict=False):
        registry.clear()
        registry.update(kept)
    for name in {"coin", "gru"} - modules:
        sys.modules.pop(name, None)


def _in_few_steps(train: Any) -> Any:
    @functools.wraps(train)
    def few(tunnel: Any, **settings: Any) -> Any:
        return train(tunnel, **settings | FEW)

    return few


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        capsys.readouterr()
        if block.kind == "python":
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
            printed = capsys.readouterr().out
            _compare(block.shows, printed, DECIMAL, block.code)
            if block.shows is not None and "ba.train(" not in block.code:
                # Nothing was cut short, so the numbers are those of the page but for the last digit.
                assert decimals(printed) == pytest.approx(decimals(block.shows), rel=0.01, abs=2e-3), block.code
        elif block.kind == "console":
            for command in commands(block):
                run(command)
                _compare(command.shows or None, capsys.readouterr().out, NUMBER, command.line)


def run(command: Command) -> None:
    """One line of a console block, in this process."""
    words = command.words
    if words[0] == "bayesattn":
        assert cli.main(_small(words[1:])) == 0, command.line
    elif words[0] == "python" and words[1].startswith("examples/"):
        arguments, sys.argv = sys.argv, [*words[1:], "--sequences", "8", "--length", "20"]
        try:
            runpy.run_path(words[1], run_name="__main__")
        finally:
            sys.argv = arguments
    else:
        assert command.line.startswith(INSTALLS), f"{command.line}: a line that nothing checks"


def _small(words: list[str]) -> list[str]:
    if "train" in words:
        return [*words, *FEW_FLAGS, "--quiet"]
    if "eval" in words:
        return [*words, "--sequences", "64"]
    if "sweep" in words and "--dry-run" not in words and not {"status", "merge"} & set(words):
        plain = ["local" if word == "ray" else "1" if word == "64" else word for word in words]
        return [*plain, "--quiet", "--workers", "1"]
    return words


def _compare(said: str | None, printed: str, numbers: Any, code: str) -> None:
    if said is not None:
        assert words_of(printed, numbers) == words_of(said, numbers), f"{code}\nprints\n{printed}"


def test_every_kind_of_block_is_known() -> None:
    """A block under another name would be passed over in silence."""
    for page in PAGES:
        for block in blocks(page):
            assert block.kind in ("python", "console", "text"), f"{page}:{block.line}: {block.kind}"


def test_a_page_that_prints_something_else_is_found() -> None:
    block = Block("python", "print('two words 1.5')", 1, "two words 2.5")
    _compare(block.shows, "two words 1.5\n", DECIMAL, block.code)
    for wrong in ("two words\n", "two word 2.5\n", "three words 2.5\n"):
        with pytest.raises(AssertionError):
            _compare(block.shows, wrong, DECIMAL, block.code)


def test_make_targets_named_on_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for block in blocks(page):
            for command in commands(block) if block.kind == "console" else []:
                if command.words[0] == "make":
                    assert f"\n{command.words[1]}:" in makefile, command.line


def test_links_between_pages_and_to_files_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert os.path.exists(page.parent / target), f"{page.relative_to(ROOT)} links to {target}"
