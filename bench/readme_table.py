"""The performance table of README.md, made from the committed results: `python -m bench.readme_table` writes it there.

A line for each case that is no point of a curve: our time, and how many times as long every peer takes.
"""

from pathlib import Path

from bayesattn_fast.bench.case import OURS
from bayesattn_fast.bench.record import TIMED, Record, load
from bayesattn_fast.report.numbers import number

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "cpu-epyc"
BEGIN, END = "<!-- made by python -m bench.readme_table -->", "<!-- end of the table -->"


def table(record: Record) -> str:
    """The table with the sentence below it, in Markdown."""
    made = ["| op | sizes | ours, ms | times ours |", "|---|---|---|---|"]
    for rows in record.cases():
        ours, *peers = rows
        if ours.contender != OURS or ours.status != TIMED or (ours.curve and ours.op != "hmm"):
            continue
        others = ", ".join(f"{row.contender} {number(row.ratio, 2)}" for row in peers if row.status == TIMED)
        work = f"{ours.op}: {ours.work}, {ours.precision}"
        made.append(f"| {work} | {ours.sizes} | {number(ours.median)} | {others} |")
    found, versions = record.environment, record.environment["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in versions if name != "python")
    timed = [row for row in record.rows if row.status == TIMED]
    made += [
        "",
        f"{found['processor']}, {found['threads']} thread, {record.settings['clock']}, {found['date']}; {named}. "
        f"{sum(row.noisy for row in timed)} of {len(timed)} timings spread by more than 20 %.",
    ]
    return "\n".join(made)


def replaced(readme: str, text: str) -> str:
    """The README with `text` between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    path = ROOT / "README.md"
    path.write_text(replaced(path.read_text(encoding="utf-8"), table(load(RESULTS))), encoding="utf-8")


if __name__ == "__main__":
    main()
