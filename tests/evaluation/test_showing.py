"""Results as people see them: as a chart, on a terminal, and as a page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
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
)
from rag_middle.evaluation.conclusions import Answer, Reason, Recommendation
from rag_middle.evaluation.plots import image
from rag_middle.evaluation.report import report_page, show_diagnosis
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments

pytest.importorskip("matplotlib")

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


def test_the_table_fits_a_terminal_and_cuts_no_name(diagnosis: Diagnosis) -> None:
    shown = StringIO()
    show_diagnosis(Console(file=shown, width=100), diagnosis)
    lines = shown.getvalue().splitlines()
    names = ("method", "none", *METHODS)
    rows = {name: line for line in lines for name in names if line.startswith(f"{name} ")}
    assert set(rows) == set(names)
    assert all(len(line) <= 100 for line in rows.values())
    assert "at 19" in rows["method"]
    # Every row has its interval and its time on the same line.
    assert all("×" in rows[label] for label in ("none", *METHODS))
    assert all(" [" in rows[label] for label in ("none", "siw"))
    assert "none seen" in rows["pine"]
    assert "none seen" not in rows["attention_buckets"]  # without right answers none can get lost
    assert " 0 % " in rows["pine"]  # answers that never flip
    assert "%)" not in shown.getvalue().replace(" %)", "")


@pytest.mark.parametrize("reason", ["too_few_questions", "cannot_answer", "helps"])
def test_a_recommendation_is_shown_unless_the_answer_repeats_it(
    diagnosis: Diagnosis, reason: Reason
) -> None:
    untold = replace(
        diagnosis,
        answer=Answer(label="unknown", text="Cannot tell."),
        recommendation=Recommendation(label="none", reason=reason, text="Do this & that."),
    )
    shown = StringIO()
    show_diagnosis(Console(file=shown, width=100), untold)
    assert ("Do this & that." in shown.getvalue()) == (reason == "helps")
    assert ("Do this &amp; that." in report_page(untold)) == (reason == "helps")


def page_of(diagnosis: Diagnosis) -> str:
    return report_page(diagnosis)


def test_commands_are_code_on_the_page_and_nothing_escapes(diagnosis: Diagnosis) -> None:
    texts = {"notes": ("Try `a <b>`, not <i>.",), "next_steps": ("Run `rag-middle calibrate`.",)}
    page = page_of(replace(diagnosis, **texts))
    assert "<li>Try <code>a &lt;b&gt;</code>, not &lt;i&gt;.</li>" in page
    assert "<code>rag-middle calibrate</code>" in page
    assert "`" not in page


class Source(HTMLParser):
    """What a page loads, the ids in it, its scripts, and its text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self._element = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element = tag
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._element = ""

    def handle_data(self, data: str) -> None:
        if self._element == "script":
            self.scripts[-1] += data
        elif self._element != "style":
            self.text += data


def test_a_report_is_one_file(diagnosis: Diagnosis) -> None:
    page = page_of(diagnosis)
    source = Source(page)
    assert [value[:19] for value in source.loaded] == ["data:image/svg+xml;"]
    assert "default-src 'none'" in page
    assert not source.scripts
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_wrong_answers_can_be_opened_with_their_documents(diagnosis: Diagnosis) -> None:
    first = diagnosis.wrong[0]
    assert first["wrong"] == max(question["wrong"] for question in diagnosis.wrong)
    assert [document["gold"] for document in first["documents"]] == [True] + 19 * [False]
    hostile = {
        **first,
        "question": "<script>alert(1)</script>",
        "documents": [{"title": None, "text": "</script><img src=x>", "gold": True}],
    }
    label = '</script><b id="x">'
    curves = replace(
        diagnosis.curves,
        curves=(*diagnosis.curves.curves, replace(diagnosis.curves["pine"], label=label)),
    )
    page = page_of(replace(diagnosis, wrong=(hostile,), curves=curves))
    assert all(value.startswith("data:image/svg+xml;") for value in Source(page).loaded)
    assert not Source(page).scripts
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;/script&gt;&lt;img src=x&gt;" in page
    assert not Source(page).ids


def test_a_run_becomes_a_report_too(model: RagMiddleModel, tmp_path: Path) -> None:
    task = InventedDocuments(documents=4)
    fake = fake_reader(model, task, lambda m, at, d: 0.9 if m == "pine" else 0.2)
    results = run(fake, task, ["pine", "ms_poe"], Measurement(limit=40, controls=True))
    page = write_evaluation(results, tmp_path, command="again")
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    text = " ".join(Source(page.read_text(encoding="utf-8")).text.split())
    assert "pine has the highest mean: Accuracy" in text
    assert "which is statistically significant." in text
    assert "Wrong answers" in text
    assert "hold for all 2 methods together" in text
    assert json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["repeat"] == "again"


LABELS = ("a $x_1$ b", "$\\frac", "_hidden", " ")


def test_labels_are_shown_as_they_are(diagnosis: Diagnosis) -> None:
    like = diagnosis.curves["pine"]
    more = [replace(like, label=label) for label in LABELS]
    curves = replace(diagnosis.curves, curves=(*diagnosis.curves.curves, *more))
    figure = plot_position_curves(curves)
    assert image(figure, "png")
    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(shown) == len(curves.labels)
    drawn = image(figure, "svg").decode()
    assert "<!-- a $x_1$ b -->" in drawn


def test_the_chart_has_a_line_per_method_and_says_what_it_shows(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    task = InventedDocuments(documents=8)
    fake = fake_reader(model, task, lambda m, at, d: 0.9 if at in (0, d - 1) else 0.4)
    figure = plot_position_curves(run(fake, task, ["pine"], Measurement(limit=20)).curves())
    [axes] = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["none", "pine"]
    assert list(axes.get_xticks()) == [0, 1, 3, 5, 7]
    lines = [list(bars.lines[0].get_xdata()) for bars in axes.containers]
    # Beside each other, none of them nearer to another position than to its own.
    assert not set(lines[0]) & set(lines[1])
    assert all([round(x) for x in line] == [0, 1, 3, 5, 7] for line in lines)
    assert "0 to 7" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
