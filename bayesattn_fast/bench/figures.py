"""The pictures of a run: a roofline against the limits that it measured, and speed against length beside the peers.

Roofline: Williams, Waterman and Patterson (2009). Work of intensity I operations a byte is done at no more than
min(I · copy rate, arithmetic rate) operations a second.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.style import DASHES, MODEL_COLOUR, REFERENCE_COLOURS, house_style, legend_below, log_scale, new_figure
from ..storage import write_atomically
from .case import OURS
from .record import TIMED, Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = (MODEL_COLOUR, *REFERENCE_COLOURS)
PEER_COLOURS = (*REFERENCE_COLOURS, "#888888")
ROOF = "#555555"
MARKERS = {"arithmetic": "s", "copy": "o", "exp": "^"}
"""By what limits the work: products, copying, exponentials."""
MARKED = {"arithmetic": "limited by arithmetic", "copy": "limited by copying", "exp": "limited by exponentials"}


def write_figures(record: Record, folder: Path) -> dict[str, Path]:
    """roofline.png, and curves.png where something was timed at two lengths or more; paths by name."""
    makers: dict[str, Callable[[], Figure]] = {}
    if any(row.operations > 0 for row in _ours(record)):
        makers["roofline"] = lambda: roofline_figure(record)
    if curves := curves_of(record):
        makers["curves"] = lambda: curves_figure(curves)
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _save(make, folder / f"{name}.png") for name, make in makers.items()}


def _save(make: "Callable[[], Figure]", path: Path) -> Path:
    with house_style():
        figure = make()
        write_atomically(path, lambda temporary: figure.savefig(temporary, format="png"))
    return path


def _ours(record: Record) -> list[Row]:
    return [row for row in record.rows if row.contender == OURS and row.status == TIMED and row.median]


def _seconds(row: Row) -> float:
    assert row.whole_ms is not None
    return row.whole_ms / 1e3


def roofline_figure(record: Record) -> "Figure":
    """Operations a second over intensity, and bytes a second over the bytes of a call, both under measured limits."""
    figure = new_figure(9.6, 4.9)
    left, right = figure.subplots(1, 2)
    rows = _ours(record)
    counted = [row for row in rows if row.operations > 0]
    intensities = [row.operations / row.bytes for row in counted]
    copies = [(size, rate) for size, rate in record.limits["copy"]]
    slow, fast = min(rate for _, rate in copies), max(rate for _, rate in copies)
    # Wide enough for the edge of the highest roof, where copying and arithmetic meet.
    ridge = max(record.limits["product"].values()) / fast
    span = min(intensities) / 3, max(*intensities, ridge) * 3
    rates = [row.operations / _seconds(row) for row in counted]
    log_scale(left, [*span, *intensities], axis="x")
    log_scale(left, [*rates, *record.limits["product"].values()])
    left.set_xlim(*span)
    for i, (name, top) in enumerate(record.limits["product"].items()):
        _roof(left, span, fast, top, i)
        left.annotate(name, (span[1], top), xytext=(-3, 3), textcoords="offset points", ha="right", color=ROOF, size=8)
    if slow < fast:  # what does not fit a cache
        slope = [x * slow for x in span]
        left.plot(span, slope, color=ROOF, linewidth=0.9, linestyle=(0, (1, 1.5)), label="copy rate from memory")
    for row, x, y in zip(counted, intensities, rates, strict=True):
        left.plot([x], [y], **_look(row, rows))
    left.set(title="Operations", xlabel="operations a byte", ylabel="operations/s")
    _prefixes(left.yaxis)

    moved = [row.bytes / _seconds(row) for row in rows]
    log_scale(right, [*(row.bytes for row in rows), *(size for size, _ in copies)], axis="x")
    log_scale(right, [*moved, *(rate for _, rate in copies)])
    label = "copy rate measured at this size"
    if len(copies) > 1:
        right.plot(*zip(*copies, strict=True), color=ROOF, linewidth=1.6, label=label)
    else:
        right.axhline(copies[0][1], color=ROOF, linewidth=1.6, label=label)
    for row, y in zip(rows, moved, strict=True):
        right.plot([row.bytes], [y], **_look(row, rows))
    right.set(title="Bytes", xlabel="bytes read and written by a call", ylabel="bytes/s")
    _prefixes(right.xaxis, right.yaxis)
    _explain_markers(right, rows)
    legend_below(figure, [left, right], columns=4)
    return figure


def _prefixes(*axes: "Axis") -> None:
    """Tick labels 10 k, 10 M, 10 G."""
    from matplotlib.ticker import EngFormatter

    for axis in axes:
        axis.set_major_formatter(EngFormatter())


def _roof(ax: "Axes", span: tuple[float, float], copy: float, top: float, index: int) -> None:
    ridge = min(max(top / copy, span[0]), span[1])
    dash: Any = "-" if index == 0 else DASHES[index - 1]
    height = [min(top, intensity * copy) for intensity in (span[0], ridge, span[1])]
    ax.plot([span[0], ridge, span[1]], height, color=ROOF, linestyle=dash)


def _look(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """An op is a colour, what limits it a marker, bfloat16 hollow."""
    ops = list(dict.fromkeys(other.op for other in rows))
    colour = COLOURS[ops.index(row.op) % len(COLOURS)]
    face = colour if row.precision == "float32" else "white"
    return {
        "linestyle": "", "marker": MARKERS[row.limit], "markersize": 6, "color": colour, "markerfacecolor": face,
        "label": row.op if row.precision == "float32" else f"{row.op}, {row.precision}",
    }  # fmt: skip


def _explain_markers(ax: "Axes", rows: Sequence[Row]) -> None:
    for limit, marker in MARKERS.items():
        if any(row.limit == limit for row in rows):
            ax.plot([], [], linestyle="", marker=marker, color="#BBBBBB", label=MARKED[limit])


Curves = dict[tuple[str, str, str], dict[str, list[tuple[int, float, float, float]]]]
"""By op, work and precision, then by contender: length, positions a second, and those of the slow and fast calls."""


def curves_of(record: Record) -> Curves:
    """What was timed at two lengths or more."""
    found: Curves = {}
    for row in record.rows:
        if not row.curve or row.status != TIMED or not row.median or row.length is None:
            continue
        # What grows with the length is counted, so that flat means linear in it.
        positions = row.amount if row.unit == "positions" else row.amount * row.length
        rates = [1e3 * positions * row.share / ms for ms in (row.median, row.p80 or row.median, row.p20 or row.median)]
        group = found.setdefault((row.op, row.work, row.precision), {})
        group.setdefault(row.contender, []).append((row.length, rates[0], rates[1], rates[2]))
    whole = {name: group for name, group in found.items() if len({p[0] for p in group.get(OURS, [])}) > 1}
    return {name: {who: sorted(points) for who, points in group.items()} for name, group in whole.items()}


def curves_figure(curves: Curves) -> "Figure":
    """Positions a second over length, ours wide; bands are the middle three fifths of the calls."""
    figure = new_figure(4.3 * max(len(curves), 1.6), 4.4)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    peers = list(dict.fromkeys(name for group in curves.values() for name in group if name != OURS))
    for ax, ((op, work, precision), group) in zip(panels, curves.items(), strict=True):
        log_scale(ax, [rate for points in group.values() for _, rate, _, _ in points])
        lengths = sorted({length for points in group.values() for length, *_ in points})
        log_scale(ax, [float(n) for n in lengths], axis="x")
        ax.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
        ax.set_xticks(lengths, [str(n) for n in lengths])
        for name, points in group.items():
            x, y, low, high = zip(*points, strict=True)
            colour, dash = _peer(peers.index(name)) if name != OURS else (MODEL_COLOUR, "-")
            width = 2.2 if name == OURS else 1.2
            ax.plot(x, y, color=colour, linestyle=dash, linewidth=width, marker="o", markersize=3.5, label=name)
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.set(title=op, xlabel="length", ylabel="positions/s")
        _prefixes(ax.yaxis)
        corner: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "va": "bottom"}
        ax.annotate(f"{work}, {precision}", (1, 1), **corner, size=8, color=ROOF)
    legend_below(figure, panels, columns=5)
    return figure


def _peer(index: int) -> tuple[str, Any]:
    return PEER_COLOURS[index % len(PEER_COLOURS)], DASHES[index % len(DASHES)]
