"""The search for tiles, with timers that need no GPU."""

from dataclasses import replace

import pytest
import torch

from bayesattn_fast.bench.case import OURS, Case, Contender, Draw, Prepared, Shape
from bayesattn_fast.bench.limits import Cost
from bayesattn_fast.bench.tune import Found, descend, neighbours, rows_with, tune
from bayesattn_fast.cli import main
from bayesattn_fast.kernels._triton import table
from bayesattn_fast.kernels._triton.table import ANY, Asked, Key, Tile

CPU = torch.device("cpu")
KEY = Key("op", "short", "90")
BOUNDS = ((16, 128), (64, 64))
ASKED = Asked(KEY, Tile((16, 64), 1), BOUNDS)
BEST = Tile((64, 64), 4, 2)


def distance(tile: Tile) -> int:
    """Steps from the best tile: a block or the warps doubled or halved, the stages, the cap."""
    away = abs(tile.blocks[0].bit_length() - BEST.blocks[0].bit_length())
    return away + abs(tile.warps.bit_length() - BEST.warps.bit_length()) + (tile.stages != BEST.stages) + tile.capped


def test_neighbours_are_one_step_away_and_within_bounds() -> None:
    found = list(neighbours(ASKED, Tile((128, 64), 16), (2,)))
    assert found == [
        Tile((64, 64), 16),
        Tile((128, 64), 8),
        Tile((128, 64), 16, 2),
        Tile((128, 64), 16, None, True),
    ]


def test_the_descent_finds_the_fastest_tile_and_times_none_twice() -> None:
    calls: list[Tile] = []

    def seconds(tile: Tile) -> float:
        calls.append(tile)
        return 1e-3 * 1.2 ** distance(tile)

    best, times = descend(ASKED, seconds, (1, 2), 1e9)
    assert best == BEST
    assert len(calls) == len(set(calls)) == len(times)


def test_a_gain_within_the_noise_changes_nothing() -> None:
    best, times = descend(ASKED, lambda tile: 1e-3 * 0.98 ** (5 - distance(tile)), (2,), 1e9)
    assert best == ASKED.tile
    assert len(times) > 1


def test_tiles_that_fail_are_passed_over_and_one_in_the_table_that_does_is_said() -> None:
    def seconds(tile: Tile) -> float | None:
        return None if tile.warps == 2 else 1e-3 * 1.2 ** distance(tile)

    best, _ = descend(ASKED, seconds, (2,), 1e9)
    assert best == BEST._replace(warps=1)  # the way to four warps leads over two
    with pytest.raises(ValueError, match="the tile in the table does not run: op, short, 90"):
        descend(ASKED, lambda tile: None, (2,), 1e9)


def test_the_search_ends_with_its_budget() -> None:
    ticks = iter(range(100))
    _, times = descend(ASKED, lambda tile: 1e-3 * 1.2 ** distance(tile), (1, 2), 3, clock=lambda: float(next(ticks)))
    assert len(times) == 4  # the present one, and three before the clock passes 3


def a_case(wrong: Tile | None = None) -> Case:
    """Exponentials whose launches ask for a tile; `wrong` is one that errs."""

    def prepare(draw: Draw, shape: Shape) -> Prepared:
        x = draw.normal(shape["N"])

        def ours() -> torch.Tensor:
            tile = table.tile("op", "short", 90, BOUNDS, ASKED.tile)
            return x.exp() * (1.01 if tile == wrong else 1.0)

        return Prepared({OURS: Contender(ours)}, lambda: (x.double().exp(),))

    return Case("exp", "forward", {"N": 64}, torch.float32, "tunnel", "numbers", 64, Cost(512), 1e-6, prepare)


def measure(run: object) -> float:
    """What the clock of the tests says of the tile in force."""
    return 1e-3 * 1.2 ** distance(table.tile("op", "short", 90, BOUNDS, ASKED.tile))


def test_every_question_is_tuned_once_and_a_wrong_tile_is_refused() -> None:
    heard: list[Found] = []
    cases = [a_case(), replace(a_case(), work="again")]
    (found,) = tune(cases, CPU, measure, 1e9, (1, 2), heard.append)
    assert heard == [found]
    assert (found.key, found.before, found.after) == (KEY, ASKED.tile, BEST)
    assert found.after_s < found.before_s
    (other,) = tune([a_case(wrong=BEST)], CPU, measure, 1e9, (1, 2))
    assert distance(other.after) == 1


def test_a_case_that_is_wrong_as_it_is_is_not_tuned() -> None:
    with pytest.raises(ValueError, match="is wrong with the tiles that it has"):
        tune([a_case(wrong=ASKED.tile)], CPU, measure, 1e9)


def test_rows_that_equal_those_of_any_architecture_are_not_written() -> None:
    found = Found(KEY, "a case", ASKED.tile, BEST, 2.0, 1.0, 9)
    rows = {Key("op", "short", ANY): ASKED.tile}
    assert rows_with([found], rows) == {**rows, KEY: BEST}
    assert rows_with([replace(found, after=ASKED.tile)], {**rows, KEY: BEST}) == rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_tune_says_so_in_one_line_and_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune"]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "bayesattn tune: needs a CUDA device; the committed table serves without\n"
    assert main(["tune", "atention"]) == 2
    assert "did you mean attention?" in capsys.readouterr().err
