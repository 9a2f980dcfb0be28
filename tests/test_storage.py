"""Files of a run are written whole or not at all, and read back as they were."""

import math
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bayesattn_fast.storage import read_json, read_table, write_atomically, write_json, write_table, write_text


def test_failed_write_keeps_the_old_content_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    write_text(target, "old")

    def half(temporary: Path) -> None:
        temporary.write_text("ne")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        write_atomically(target, half)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.txt"]


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    write_text(target, "old")
    seen = []

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        seen.append(target.read_text())

    write_atomically(target, write)
    assert seen == ["old"]
    assert target.read_text() == "new"


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        write_json(tmp_path / "a.json", {})
        write_atomically(tmp_path / "a.safetensors", lambda path: save_file({"a": torch.ones(1)}, path))
    finally:
        os.umask(previous)
    for name in ("a.json", "a.safetensors"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644


def test_missing_folder_is_an_os_error_that_names_the_target_and_not_the_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "absent" / "a.txt", "")
    assert caught.value.filename == str(tmp_path / "absent" / "a.txt")
    assert ".tmp" not in str(caught.value)


def test_table_round_trip_keeps_kinds_nulls_and_non_finite_numbers(tmp_path: Path) -> None:
    rows = [{"seed": 0, "kl": 0.5, "name": "model"}, {"seed": 1, "kl": math.inf, "name": None}, {"seed": 2}]
    write_table(tmp_path / "a.parquet", rows)
    assert read_table(tmp_path / "a.parquet") == [
        {"seed": 0, "kl": 0.5, "name": "model"},
        {"seed": 1, "kl": math.inf, "name": None},
        {"seed": 2, "kl": None, "name": None},
    ]
    write_table(tmp_path / "a.parquet", [{"kl": math.nan}])
    assert math.isnan(read_table(tmp_path / "a.parquet")[0]["kl"])


def test_folder_names_do_not_become_columns(tmp_path: Path) -> None:
    folder = tmp_path / "seed=3"
    folder.mkdir()
    write_table(folder / "a.parquet", [{"kl": 0.5}])
    assert read_table(folder / "a.parquet") == [{"kl": 0.5}]


def test_empty_table_round_trip(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", [])
    assert read_table(tmp_path / "a.parquet") == []


def test_column_of_mixed_kinds_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"column .kl. of .* mixes"):
        write_table(tmp_path / "a.parquet", [{"kl": 1.0}, {"kl": "high"}])
    assert list(tmp_path.iterdir()) == []


def test_unreadable_files_are_named_in_one_line(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    write_table(whole, [{"kl": float(i)} for i in range(100)])
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-40])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "cut.json").write_text('{"tunnel": ')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name, read, message in [
        ("absent.parquet", read_table, "does not exist"),
        ("cut.parquet", read_table, "not a readable Parquet"),
        ("empty.parquet", read_table, "not a readable Parquet"),
        ("cut.json", read_json, "not valid JSON"),
        ("binary.json", read_json, "not valid JSON"),
        (".", read_json, "is not a file"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            read(tmp_path / name)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="lacks the columns seed, step"):
        read_table(whole, required=("seed", "step", "kl"))


def test_json_refuses_what_json_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"kl": math.nan})
    assert not (tmp_path / "a.json").exists()
    write_json(tmp_path / "a.json", {"kl": None, "seeds": [0, 1]})
    assert read_json(tmp_path / "a.json") == {"kl": None, "seeds": [0, 1]}
