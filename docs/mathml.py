"""Formulas as MathML, which browsers draw themselves: the pages then need no script and no network."""

from typing import Any

from latex2mathml.converter import convert


def inline(writer: Any, node: Any) -> None:
    """Write one formula into a line of text."""
    writer.body.append(convert(node.astext()))
    raise _done()


def block(writer: Any, node: Any) -> None:
    """Write one formula on a line of its own."""
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise _done()


def _done() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
