"""The committed table of tiles: what it answers, and that what it holds can run."""

import json
from pathlib import Path

import pytest

from bayesattn_fast.kernels._triton import table
from bayesattn_fast.kernels._triton.table import ANY, COMMITTED, Key, Tile


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of one's own, with a row for any architecture and one for 90."""
    file = tmp_path / "tiles.json"
    rows = {Key("op", "short", ANY): Tile((32,), 4), Key("op", "short", "90"): Tile((64,), 8, 3, True)}
    file.write_text(table.text(rows, {"90": {"gpu": "a card"}}))
    monkeypatch.setenv("BAYESATTN_TILES", str(file))
    return file


@pytest.mark.usefixtures("own")
def test_a_row_of_the_architecture_comes_before_that_of_any_and_both_before_the_default() -> None:
    def asked(shape: str, architecture: int) -> Tile:
        return table.tile("op", shape, architecture, ((16, 256),), Tile((1,), 1))

    assert asked("short", 90) == Tile((64,), 8, 3, True)
    assert asked("short", 80) == Tile((32,), 4)
    assert asked("long", 90) == Tile((1,), 1)
    with pytest.raises(KeyError, match="no tile for op, long, compute capability 9"):
        table.tile("op", "long", 90, ((16, 256),))


def test_a_table_comes_back_from_its_file(own: Path) -> None:
    rows = table.read(own)
    assert rows == {Key("op", "short", ANY): Tile((32,), 4), Key("op", "short", "90"): Tile((64,), 8, 3, True)}
    assert table.text(rows, table.measured(own)) == own.read_text()


@pytest.mark.usefixtures("own")
def test_a_forced_tile_is_used_inside_the_block_alone_and_questions_are_heard() -> None:
    with table.listening() as heard, table.forced("op", "short", Tile((16,), 2)):
        assert table.tile("op", "short", 90, ((16, 64),)) == Tile((16,), 2)
    assert table.tile("op", "short", 90, ((16, 64),)) == Tile((64,), 8, 3, True)
    (asked,) = heard.values()
    assert asked == (Key("op", "short", "90"), Tile((16,), 2), ((16, 64),))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[", "Expecting value"),
        ('{"format": 2, "rows": []}', "format 2, this version reads 1"),
        ('{"format": 1, "rows": [{"op": "a"}]}', "'shape'"),
        (
            json.dumps(
                {"format": 1, "rows": [{"op": "a", "shape": "b", "architecture": "90", "blocks": [1], "warps": 1}] * 2}
            ),
            "two rows for a, b, 90",
        ),
    ],
)
def test_what_is_no_table_is_refused_by_name(content: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"mine\.json is not a table of tiles") as raised:
        table.read(file)
    assert says in str(raised.value)


def test_every_committed_tile_is_of_powers_of_two_that_a_product_takes() -> None:
    rows = table.read(COMMITTED)
    assert {key.op for key in rows} >= {"attention"}
    for key, tile in rows.items():
        for edge in (*tile.blocks, tile.warps):
            assert edge & (edge - 1) == 0, key
        assert 1 <= tile.warps <= 16, key
        if key.op == "attention":
            assert min(tile.blocks) >= 16, key
            assert " keys" not in key.shape or key.shape.endswith(f", {tile.blocks[1]} keys"), key


def test_the_committed_table_says_on_what_each_measured_architecture_was_measured() -> None:
    architectures = {key.architecture for key in table.read(COMMITTED)} - {ANY}
    assert architectures == set(table.measured(COMMITTED))
