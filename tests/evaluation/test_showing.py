"""Results as people see them: as a chart, on a terminal, and as a page."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rag_middle.evaluation import (
    Diagnosis,
    Measurement,
    diagnose,
    plot_position_curves,
    run,
    write_evaluation,
    write_report,
)
from rag_middle.evaluation.plots import image
from rag_middle.evaluation.report import report_page, show_diagnosis
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments

pytestmark = pytest.mark.thorough

TASK = InventedDocuments(documents=20)
METHODS = ("pine", "ms_poe", "siw", "attention_buckets")


def _accuracy(method: str, position: int, documents: int) -> float:
    if method == "attention_buckets":
        return 0.0
    return 0.3 if position == 0 and method != "pine" else 1.0


@pytest.fixture(scope="module")
def diagnosis(model: RagMiddleModel) -> Diagnosis:
    fake = fake_reader(model, TASK, _accuracy)
    return diagnose(fake, TASK, METHODS, Measurement(limit=40, orders=3, controls=True))


def terminal(diagnosis: Diagnosis) -> str:
    shown = StringIO()
    show_diagnosis(Console(file=shown, width=100), diagnosis)
    return shown.getvalue()


def test_the_table_fits_a_terminal_and_cuts_no_name(diagnosis: Diagnosis) -> None:
    lines = terminal(diagnosis).splitlines()
    names = ("method", "none", *METHODS)
    rows = {name: line for line in lines for name in names if line.startswith(f"{name} ")}
    assert set(rows) == set(names)
    assert all(len(line) <= 100 for line in rows.values())
    assert "at 19" in rows["method"]
    # Every row has its interval and its time on the same line.
    assert all("×" in rows[label] for label in ("none", *METHODS))
    assert all(" [" in rows[label] for label in ("none", "siw"))
    assert "none seen" in rows["pine"]
    assert "none seen" not in rows["attention_buckets"]  # without correct answers none can get lost
    assert " 0 % " in rows["pine"]  # answers that never flip


def test_two_questions_are_said_to_tell_nothing_and_nothing_is_to_be_used(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    fake = fake_reader(model, TASK, _accuracy)
    few = diagnose(fake, TASK, ["pine"], Measurement(limit=2, positions=3))
    page = write_report(few, tmp_path).read_text(encoding="utf-8")
    for text in (terminal(few), page):
        assert (
            text.count("Cannot tell. 2 questions can show nothing about positions: at least 20")
            == 1
        )
        assert "100 to tell gaps" in text
    assert "100.0]" not in terminal(few).splitlines()[2]  # no gap with its interval
    assert not few.notes
    assert few.profile.method == "none"
    assert "Use it" not in page


def test_what_is_recommended_is_shown_with_how_to_use_it(diagnosis: Diagnosis) -> None:
    assert diagnosis.recommendation.label == "pine"
    page = report_page(diagnosis)
    assert diagnosis.recommendation.text in terminal(diagnosis)
    assert diagnosis.recommendation.text in page
    assert "Use it: <code>--method profile:FOLDER</code>, the folder of this page (pine)." in page


def loaded(page: str) -> list[str]:
    """What a page loads."""
    return re.findall(r'\b(?:src|href)="([^"]*)"', page)


def test_a_page_is_one_file_and_nothing_escapes(diagnosis: Diagnosis) -> None:
    page = report_page(diagnosis)
    assert [address[:19] for address in loaded(page)] == ["data:image/svg+xml;"]
    assert "default-src 'none'" in page
    first = diagnosis.wrong[0]
    assert first["wrong"] == max(question["wrong"] for question in diagnosis.wrong)
    assert [document["gold"] for document in first["documents"]] == [True] + 19 * [False]
    hostile = {
        **first,
        "question": "<script>alert(1)</script>",
        "documents": [{"title": None, "text": "</script><img src=x>", "gold": True}],
    }
    bold = replace(diagnosis.curves["pine"], label='</script><b id="x">')
    changed = replace(
        diagnosis,
        wrong=(hostile,),
        curves=replace(diagnosis.curves, curves=(*diagnosis.curves.curves, bold)),
        notes=("Try `a <b>`, not <i>.",),
    )
    page = report_page(changed)
    assert len(loaded(page)) == 1
    assert not re.search(r"<(script|b id|i)\b", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<li>Try <code>a &lt;b&gt;</code>, not &lt;i&gt;.</li>" in page


def test_a_run_becomes_a_report_too(model: RagMiddleModel, tmp_path: Path) -> None:
    task = InventedDocuments(documents=4)
    fake = fake_reader(model, task, lambda m, at, d: 0.9 if m == "pine" else 0.2)
    results = run(fake, task, ["pine", "ms_poe"], Measurement(limit=40, controls=True))
    page = write_evaluation(results, tmp_path, command="again")
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert "pine has the highest mean: Accuracy" in text
    assert "which is statistically significant." in text
    assert "Wrong answers" in text
    assert "hold for all 2 methods together" in text
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["repeat"] == "again"


def test_the_chart_has_a_line_per_method_whatever_its_label(diagnosis: Diagnosis) -> None:
    like = diagnosis.curves["pine"]
    more = [replace(like, label=label) for label in ("a $x_1$ b", "$\\frac", "_hidden", " ")]
    curves = replace(diagnosis.curves, curves=(*diagnosis.curves.curves, *more))
    figure = plot_position_curves(curves)
    assert image(figure, "png").startswith(b"\x89PNG")
    assert "<!-- a $x_1$ b -->" in image(figure, "svg").decode()
    [axes] = figure.axes
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown[:2] == ["none", "pine"]
    assert len(shown) == len(curves.labels)
    assert list(axes.get_xticks()) == list(curves.positions)
    assert "0 to 19" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
    [axes] = plot_position_curves(diagnosis.curves).axes
    lines = [list(bars.lines[0].get_xdata()) for bars in axes.containers]
    # Beside each other, none of them nearer to another position than to its own.
    assert not set(lines[0]) & set(lines[1])
    assert all([round(x) for x in line] == list(curves.positions) for line in lines)
