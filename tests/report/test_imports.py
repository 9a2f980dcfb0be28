"""Heavy libraries are imported where they are used, not with the package."""

import subprocess
import sys


def test_reports_and_evaluations_import_no_plotting_table_or_statistics_library() -> None:
    code = (
        "import sys, bayesattn_fast.report, bayesattn_fast.evaluation;"
        "print([name for name in ('matplotlib', 'pyarrow', 'scipy', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
