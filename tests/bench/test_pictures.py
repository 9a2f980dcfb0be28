"""What the pictures and the page of a benchmark are drawn from."""

from dataclasses import replace
from pathlib import Path

import pytest

from bayesattn_fast.bench.case import OURS
from bayesattn_fast.bench.cases import cases_of
from bayesattn_fast.bench.figures import curves_figure, curves_of, roofline_figure, write_figures
from bayesattn_fast.bench.page import write_page
from bayesattn_fast.bench.record import MISSING, TIMED, Record, Row
from bayesattn_fast.report.style import house_style

LIMITS = {"copy": [(2**16, 1e11), (2**28, 1e10)], "product": {"float32": 2e11, "bfloat16": 4e11}, "exp": 1e9}


def a_row(contender: str = OURS, length: int = 10, milliseconds: float = 2.0, **more: object) -> Row:
    row = Row(
        "attention", "forward + backward", f"N {length}", "float32", "curve", contender, TIMED, error=1e-7,
        tolerance=3e-6, p20=0.5 * milliseconds, median=milliseconds, p80=2 * milliseconds, ratio=1.0, unit="positions",
        amount=1000, bytes=1e6, operations=1e8, floor_ms=0.5, limit="arithmetic", curve="N", length=length,
    )  # fmt: skip
    return replace(row, **more)  # type: ignore[arg-type]


def a_record(*rows: Row) -> Record:
    found = {"processor": "a CPU", "threads": 1, "load": 0.5, "date": "today", "versions": {"torch": "2"}}
    return Record(found, LIMITS, {"clock": "processor time", "rounds": 25, "seed": 1}, rows)


def test_a_curve_is_positions_a_second_for_the_whole_work_and_bands_are_its_percentiles() -> None:
    rows = [a_row(length=n) for n in (20, 10)] + [a_row("peer", n, 8.0, share=0.25) for n in (10, 20)]
    ((key, group),) = curves_of(a_record(*rows)).items()
    assert key == ("attention", "forward + backward", "float32")
    fast, slow = 1000 / 2e-3, 1000 / (8e-3 / 0.25)
    assert group[OURS] == [(n, pytest.approx(fast), pytest.approx(fast / 2), pytest.approx(fast * 2)) for n in (10, 20)]
    assert [point[1] for point in group["peer"]] == pytest.approx([slow, slow])


def test_sequences_are_counted_by_their_positions() -> None:
    rows = [a_row(length=n, unit="sequences", amount=50) for n in (10, 20)]
    (group,) = curves_of(a_record(*rows)).values()
    assert [point[1] for point in group[OURS]] == pytest.approx([50 * 10 / 2e-3, 50 * 20 / 2e-3])


def test_one_length_is_no_curve(tmp_path: Path) -> None:
    record = a_record(a_row(), a_row("peer"))
    assert curves_of(record) == {}
    assert set(write_figures(record, tmp_path)) == {"roofline"}


def test_the_roofline_shows_achieved_rates_at_their_intensity_and_the_measured_roofs() -> None:
    rows = [a_row(length=10), a_row(length=20, milliseconds=4.0), a_row("peer")]
    left, right = roofline_figure(a_record(*rows)).axes
    points = [line for line in left.lines if line.get_linestyle() == "None"]
    assert [(float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in points] == [  # type: ignore[index]
        (100.0, pytest.approx(1e8 / 2e-3)),
        (100.0, pytest.approx(1e8 / 4e-3)),
    ]
    roofs = [max(float(y) for y in line.get_ydata()) for line in left.lines if len(line.get_xdata()) == 3]  # type: ignore[arg-type, union-attr]
    assert roofs == [2e11, 4e11]
    bytes_a_second = [float(p.get_ydata()[0]) for p in right.lines if len(p.get_xdata()) == 1]  # type: ignore[arg-type, index]
    assert bytes_a_second == [pytest.approx(1e6 / 2e-3), pytest.approx(1e6 / 4e-3)]


def test_every_panel_names_its_work_and_every_contender_is_in_the_legend() -> None:
    rows = [a_row(name, n) for n in (10, 20) for name in (OURS, "torch SDPA", "dense autograd")]
    with house_style():
        figure = curves_figure(curves_of(a_record(*rows)))
    (ax,) = figure.axes
    assert ax.get_title(loc="left") == "attention"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [OURS, "torch SDPA", "dense autograd"]


def test_the_page_holds_both_pictures_every_timing_and_why_a_peer_is_missing(tmp_path: Path) -> None:
    rows = [a_row(name, n) for n in (10, 20) for name in (OURS, "torch SDPA")]
    missing = a_row("hmmlearn", status=MISSING, reason="ImportError: not here", median=None, p20=None, p80=None)
    text = write_page(a_record(*rows, missing), tmp_path).read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 2
    assert text.count("<td>torch SDPA</td>") == 2
    assert "left out: hmmlearn (ImportError: not here)" in text
    assert "http" not in text.replace("http-equiv", "")


def test_curves_are_asked_for_or_part_of_all_sizes() -> None:
    lengths = {case.shape["N"] for case in cases_of(["attention"], "tunnel", curves=True) if case.curve}
    assert lengths == {10, 20, 40, 80, 160, 320, 640}
    assert not any(case.curve for case in cases_of(["attention"], "tunnel"))
    assert {case.name for case in cases_of(["attention"], "all")} >= {
        case.name for case in cases_of(["attention"], "tunnel", curves=True)
    }
    assert len({case.name for case in cases_of()}) == len(cases_of())
