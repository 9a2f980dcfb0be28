"""README's performance table is that of the committed results."""

from bayesattn_fast.bench.record import TIMED, load
from bench.readme_table import RESULTS, ROOT, replaced, table


def test_the_table_of_the_readme_is_made_from_the_committed_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert replaced(readme, table(load(RESULTS))) == readme, "run python -m bench.readme_table"


def test_the_committed_results_have_the_peers_beside_ours() -> None:
    timed = {row.contender for row in load(RESULTS).rows if row.status == TIMED}
    peers = {"torch SDPA", "dense autograd", "mamba-ssm", "mambapy", "hmmlearn", "dynamax", "vectorised torch"}
    assert {"ours", "plain loop", *peers} <= timed
