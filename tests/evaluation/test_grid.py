"""Scores by number of documents and position."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.evaluation import (
    Grid,
    Item,
    Measurement,
    Results,
    arranged_documents,
    diagnose,
    grid_of,
    position,
    run,
    write_report,
)
from rag_middle.evaluation.terminal import show_diagnosis
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader
from tests.reader.questions import InventedDocuments

TASK = InventedDocuments(documents=20)
HOW = Measurement(limit=100, grid=(5, 10))


def length_hurts_without_pine(method: str, at: int | None, documents: int) -> float:
    """Ends stay good, the middle falls with length; Ms-PoE only hurts where it is short."""
    if method == "pine":
        return 0.9
    if method == "ms_poe" and documents == 5:
        return 0.4
    return 0.9 if at in (0, documents - 1) or documents == 5 else 1.0 - 0.03 * documents


@pytest.fixture(scope="module")
def results(model: RagMiddleModel) -> Results:
    return run(fake_reader(model, TASK, length_hurts_without_pine), TASK, ["pine", "ms_poe"], HOW)


@pytest.fixture(scope="module")
def grid(results: Results) -> Grid:
    grid = grid_of(results)
    assert grid is not None
    return grid


def test_fewer_documents_are_the_gold_one_and_the_first_of_the_others() -> None:
    gold, *others = (Document(name) for name in "gabcd")
    item = Item(id="0", question="?", answers=("g",), gold=gold, others=tuple(others))
    condition = position(1, 3)
    assert condition.name == "position:1/3"
    assert "".join(d.text for d in arranged_documents(item, condition)) == "agb"
    with pytest.raises(ConfigError, match="cannot be at position 3"):
        arranged_documents(item, position(3, 3))


def test_cells_are_the_models_accuracy_at_that_length_and_position(grid: Grid) -> None:
    assert [row.name for row in grid.rows] == ["5 documents", "10 documents", "20 documents"]
    assert grid.rows[0].columns == ("at 0", "at 1", "at 2", "at 3", "at 4")
    assert grid.rows[2].columns == ("at 0", "at 4", "at 9", "at 14", "at 19")
    for row, documents in zip(grid.rows, (5, 10, 20), strict=True):
        for label, curve in row.curves.items():
            for column, estimate in zip(row.columns, curve.estimates, strict=True):
                chance = length_hurts_without_pine(label, int(column[3:]), documents)
                assert estimate.value == pytest.approx(chance, abs=0.15)  # 3 standard deviations


def test_what_follows_is_said(grid: Grid) -> None:
    positions, _, length, pine, ms_poe = grid.sentences
    assert positions.endswith("first to last: 10 documents and 20 documents.")
    assert length.startswith("20 documents: ")
    assert length.endswith("The difference is statistically significant.")
    assert pine.startswith("pine, on average over columns: significantly better: 10 documents (by")
    assert pine.endswith("no significant difference: 5 documents.")
    assert ms_poe.startswith("ms_poe, on average over columns: significantly worse: 5 documents")
    assert ms_poe.endswith("no significant difference: 10 documents and 20 documents.")
    # Two methods in three rows, and three methods in two rows against the first.
    assert grid.confidence == pytest.approx(1 - 0.05 / (6 + 6))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Measurement(grid=(1,)), "grid must be a whole number >= 2"),
        (lambda: Measurement(grid=(20,)).gold_positions(TASK), "below the 20 documents"),
        (
            lambda: Measurement(grid=(5,), positions=(7, 10)).gold_positions(TASK, 5),
            "there is none of the positions",
        ),
    ],
)
def test_a_grid_that_cannot_be_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong()


@pytest.mark.slow
def test_a_diagnosis_shows_its_grid(model: RagMiddleModel, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fake = fake_reader(model, TASK, length_hurts_without_pine)
    diagnosis = diagnose(fake, TASK, ["pine"], HOW)
    path = write_report(diagnosis, tmp_path)
    page = path.read_text("utf-8")
    assert page.count('class="chart"') == 1 + 1  # heat maps are one picture
    assert "<h2>Number of documents and position" in page
    assert (tmp_path / "report-grid.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert data["grid"]["rows"][0]["name"] == "5 documents"
    shown = StringIO()
    show_diagnosis(Console(file=shown, width=100), diagnosis)
    assert "first to last: 10 documents and 20 documents." in shown.getvalue()
