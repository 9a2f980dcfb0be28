"""The README's Python runs as printed, and its quick commands print what is said of them."""

import re
from pathlib import Path

import pytest

from bayesattn_fast import cli
from tests.docs.pages import NUMBER, blocks, commands, words_of

ROOT = Path(__file__).parents[1]
README = blocks(ROOT / "README.md")
# Long ones are run, smaller, by the tests of their commands and of the pages in docs/.
QUICK = ("doctor", "tunnels")


def python(first_word: str) -> str:
    """The one Python block that has these words."""
    (found,) = [block.code for block in README if block.kind == "python" and first_word in block.code]
    return found


def test_the_five_lines_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "seeds=3, steps=4, layers=1, d_model=16, batch=8, eval_sequences=32, warmup=2"
    code = python("ba.train(").replace("seeds=3", small)
    assert small in code
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "report.html" in shown
    assert (tmp_path / "runs" / "mine" / "report.html").exists()
    assert "(95 % interval, 3 seeds)" in shown


def test_the_demo_prints_a_table_of_the_kind_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words and their order; the numbers are those of the whole training."""
    monkeypatch.chdir(tmp_path)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^demo:.*\n\t\$\(BIN\)/bayesattn (.*)$", makefile, flags=re.MULTILINE)
    few = ["--steps", "4", "--warmup", "1", "--eval-sequences", "64", "--batch", "8", "--quiet"]
    assert cli.main([*line.split(), *few]) == 0
    (shown,) = [block.code for block in README if block.kind == "text" and "best position-only" in block.code]
    assert words_of(capsys.readouterr().out, NUMBER) == words_of(shown, NUMBER)


def test_the_attention_lines_of_the_readme_run_and_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(python("attention_dynamics("), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "torch.Size([8, 4, 64])"


def test_every_command_of_the_readme_exists_and_the_quick_ones_run(capsys: pytest.CaptureFixture[str]) -> None:
    named = set()
    for block in README:
        for command in commands(block) if block.kind == "console" else []:
            if command.words[0] == "bayesattn":
                named.add(command.words[1])
                if command.words[1] in QUICK:
                    assert cli.main(command.words[1:]) == 0, command.line
    assert "report" in named
    assert named <= set(cli.COMMANDS)
    # What each is for is said on the command line as well as here.
    assert set(cli.COMMANDS) - {"dynamics", "tunnels"} <= named, "the README lists every command"


def test_every_command_and_tunnel_has_a_line_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in cli.COMMANDS:
        assert re.search(rf"`?bayesattn {command}\b", text), f"README says nothing of bayesattn {command}"
