"""The documentation: `make docs` builds it into docs/_build, warnings as errors, without network."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import bayesattn_fast
from bayesattn_fast.cli import COMMANDS

project = "bayesattn-fast"
author = "the bayesattn-fast authors"
copyright = author
release = version = bayesattn_fast.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosectionlabel", "mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "substitution"]
myst_substitutions = {
    "commands": "\n".join(
        ["| command | does |", "|---|---|", *(f"| `{name}` | {does} |" for name, does in COMMANDS.items())]
    )
}
myst_heading_anchors = 3
autosectionlabel_prefix_document = True
# The console blocks hold commands and what they print, which no lexer takes as one language.
suppress_warnings = ["misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = f"bayesattn-fast {release}"
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"


def plain_text(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are prose with formulas, not reStructuredText: `code` is code, and every other mark is itself."""
    for i, line in enumerate(lines):
        parts = re.split(r"`+([^`]+)`+", line)
        lines[i] = "".join(
            f"``{part}``" if odd % 2 else re.sub(r"([*|\\]|_\b)", r"\\\1", part) for odd, part in enumerate(parts)
        )


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", plain_text)  # type: ignore[attr-defined]
