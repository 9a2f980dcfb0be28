"""Reports of runs: the result table, the figures, one self-contained page, and the comparison of several runs."""

from .page import read_runs, write_comparison, write_report
from .run import RunRecord, read_run
from .tables import comparison_json, comparison_tables, length_table, result_table, summary_json
from .verdict import verdict

__all__ = [
    "RunRecord",
    "comparison_json",
    "comparison_tables",
    "length_table",
    "read_run",
    "read_runs",
    "result_table",
    "summary_json",
    "verdict",
    "write_comparison",
    "write_report",
]
