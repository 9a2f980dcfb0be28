"""The page stands alone, holds the numbers of the rows, and says plainly how good they are."""

import html
import re
from pathlib import Path

import pytest
import torch

from bayesattn_fast.evaluation import evaluate
from bayesattn_fast.report import read_run, verdict, write_comparison, write_report
from bayesattn_fast.report.figures import alike, binned_losses
from bayesattn_fast.report.numbers import number
from bayesattn_fast.report.results import Results
from bayesattn_fast.report.tables import SHOWN
from bayesattn_fast.storage import write_json
from tests.evaluation.urn import Urn
from tests.report.runs import make_run, noisy

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("runs") / "urn", longer=7)
    assert write_report(folder) == folder / "report.html"
    return folder


def test_page_fetches_nothing(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert not re.search(r"https?://|//[a-z]|@import|<script|<link|url\(", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page))
    assert page.count("data:image/png;base64,") == 4


def test_page_holds_every_number_of_the_table(run: Path) -> None:
    results = read_run(run).results
    page = (run / "report.html").read_text()
    lines = [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in page.split("<tr")]
    table = {line[0]: line[1:] for line in lines if (line and line[0] not in ("model", "uniform")) or len(line) > 6}
    assert table["mean of 3 seeds"] == [number(results.summary(metric).mean) for metric in SHOWN]
    assert table["seed 1"] == [number(results.per_seed(metric)[1]) for metric in SHOWN]
    assert table["exact posterior"] == [number(results.summary(metric, "exact posterior").mean) for metric in SHOWN]
    assert html.escape(verdict(results).text, quote=False) in page.replace("&#39;", "'")


def test_page_tells_how_to_reproduce_and_escapes_what_it_quotes(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "<pre>bayesattn train urn --seeds 3</pre>" in page
    assert "Some &lt;CPU&gt; &amp; co" in page
    assert "2.13.0" in page


def test_figures_are_written_as_png_files(run: Path) -> None:
    names = sorted(path.name for path in (run / "figures").iterdir())
    assert names == ["entropy.png", "kl.png", "loss.png", "predictors.png"]
    assert all((run / "figures" / name).read_bytes().startswith(PNG) for name in names)


def test_report_of_an_unfinished_run_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", seeds=(4,), sequences=5)
    write_json(folder / "state.json", {"step": 400, "finished": False, "diverged": {}})
    assert "The run is not finished: it stands at step 400." in write_report(folder).read_text()


def test_report_is_written_when_every_seed_diverged(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", diverged={0: 3, 1: 4, 2: 5}, sequences=5)
    page = write_report(folder).read_text()
    assert "Every seed diverged" in page
    assert "seed 1: diverged at step 4" in page


def test_comparison_shows_each_task_with_its_runs_and_figure(tmp_path: Path, run: Path) -> None:
    other = make_run(tmp_path / "other", tunnel=Urn(draws=4), sequences=10)
    page = write_comparison([run, other], tmp_path / "pages" / "both.html")
    text = page.read_text()
    assert "2 runs, 2 tasks" in text
    assert text.count("data:image/png;base64,") == 2
    assert number(read_run(other).results.summary("kl").mean) in text
    assert (tmp_path / "pages" / "figures" / "both-2.png").read_bytes().startswith(PNG)


def results_of(predict, sequences: int = 200, **options: object) -> Results:
    return Results.of(evaluate(predict, Urn(), range(3), sequences=sequences, **options).to_rows())


def test_verdict_of_a_close_model_names_its_distance_and_the_reference_it_beats() -> None:
    results = results_of(noisy(Urn(), 0.05))
    judged = verdict(results)
    assert judged.kind == "close"
    assert f"{number(results.summary('kl').mean)} bits of KL" in judged.text
    assert "in every seed" in judged.text


def test_verdict_of_a_uniform_model_is_that_nothing_was_learnt() -> None:
    assert verdict(results_of(lambda inputs: torch.zeros(*inputs.shape, 4))).kind == "nothing"


def test_verdict_between_references_names_both_neighbours() -> None:
    urn = Urn()

    def last_draw_and_a_little(inputs: torch.Tensor) -> torch.Tensor:
        last = (2 - torch.nn.functional.one_hot(inputs, 4)) / 7
        return torch.log(0.9 * last + 0.1 * urn.predictive(inputs))

    judged = verdict(results_of(last_draw_and_a_little))
    assert judged.kind == "partial"
    assert "closer than “last draw only”" in judged.text


def test_verdict_on_a_model_below_the_floor_is_a_bug() -> None:
    urn = Urn()
    answers = iter([])

    def peeking(inputs: torch.Tensor) -> torch.Tensor:
        return 4.0 * torch.nn.functional.one_hot(next(answers), 4) + urn.predictive(inputs).log().clamp_min(-20)

    from bayesattn_fast.tunnels.protocol import Stream

    answers = iter([urn.sample(range(3), 0, 200, stream=Stream.HELD_OUT).targets])
    judged = verdict(results_of(peeking, chunk=200))
    assert judged.kind == "broken"
    assert "cannot be right" in judged.text


def test_loss_curves_are_means_over_bins_of_steps(run: Path) -> None:
    record = read_run(run)
    steps, losses, floors = binned_losses(record)
    total = sum(row["loss"] for row in record.losses if row["seed"] == 2)
    assert len(steps) == len(losses[2]) == 41  # fewer records than bins: each keeps its own
    assert sum(losses[2]) == pytest.approx(total)
    assert all(loss > floor - 0.05 for loss, floor in zip(losses[0], floors[0], strict=True))


def test_lines_that_would_hide_each_other_share_a_name() -> None:
    curves = {"uniform": [0.0, 1.0], "best constant": [0.0, 1.001], "window 1": [0.0, 0.5]}
    assert alike(curves) == [["uniform", "best constant"], ["window 1"]]
