"""The short way to a curve and its chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_middle.evaluation import (
    InventedDocuments,
    KeyValueRetrieval,
    accuracy_by_position,
    plot_position_curves,
)
from rag_middle.generation import RagMiddleModel
from tests.evaluation.fake_models import fake_reader


def lost_in_the_middle(method: str, place: int | None, documents: int) -> float:
    at_an_end = place in (0, documents - 1)
    return 0.9 if at_an_end or method == "pine" else 0.4


def test_curves_show_what_the_model_does(model: RagMiddleModel) -> None:
    task = InventedDocuments(documents=8)
    fake = fake_reader(model, task, lost_in_the_middle)
    curves = accuracy_by_position(fake, task, ["pine"], limit=100)
    assert curves.places == (0, 1, 3, 5, 7)
    none, pine = curves.curves
    # 100 draws of a chance of 0.9 or 0.4: three standard deviations.
    assert [each.value for each in none.estimates] == pytest.approx(
        [0.9, 0.4, 0.4, 0.4, 0.9], abs=0.15
    )
    assert none.gap.low > 0.2
    assert pine.gap.includes_zero


def test_a_real_model_has_a_curve(model: RagMiddleModel) -> None:
    task = KeyValueRetrieval(keys=6, identifier_characters=8)
    curves = accuracy_by_position(model, task, limit=2, positions=3, max_new_tokens=4)
    assert curves.questions == 2
    assert curves.to_dict()["places"] == [0, 2, 5]


def test_the_chart_has_a_line_per_method_and_says_what_it_shows(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    task = InventedDocuments(documents=8)
    fake = fake_reader(model, task, lost_in_the_middle)
    curves = accuracy_by_position(fake, task, ["pine"], limit=20)
    figure = plot_position_curves(curves)
    [axes] = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["none", "pine"]
    assert list(axes.get_xticks()) == [1, 2, 4, 6, 8]
    places = [list(bars.lines[0].get_xdata()) for bars in axes.containers]
    # Beside each other, none of them nearer to another place than to its own.
    assert not set(places[0]) & set(places[1])
    assert all([round(at) for at in drawn] == [1, 2, 4, 6, 8] for drawn in places)
    assert "of 8" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
