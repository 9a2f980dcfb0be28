"""The README's Python runs as printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_five_lines_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block, _ = blocks()
    monkeypatch.chdir(tmp_path)
    small = "seeds=3, steps=4, layers=1, d_model=16, batch=8, eval_sequences=32, warmup=2"
    code = block.replace("seeds=3", small)
    assert small in code
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "report.html" in shown
    assert (tmp_path / "runs" / "mine" / "report.html").exists()
    assert "(95 % interval, 3 seeds)" in shown


def test_the_attention_lines_of_the_readme_run_and_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    _, block = blocks()
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "torch.Size([8, 4, 64])"
