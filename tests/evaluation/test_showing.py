"""Results as people see them: as a chart, on a terminal, and as a page."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from rag_middle.evaluation import (
    Diagnosis,
    InventedDocuments,
    Measurement,
    diagnose,
    plot_position_curves,
    run,
)
from rag_middle.evaluation.plots import legend_columns
from rag_middle.evaluation.report import html_report
from rag_middle.evaluation.terminal import show_diagnosis
from rag_middle.evaluation.trials import model_identity
from rag_middle.generation import RagMiddleModel
from rag_middle.reader import READER_NAME, is_reader, reader_path
from tests.evaluation.fake_models import fake_reader

pytest.importorskip("matplotlib")

TASK = InventedDocuments(documents=20)
METHODS = ("pine", "ms_poe", "siw", "attention_buckets")


@pytest.fixture(scope="module")
def diagnosis(model: RagMiddleModel) -> Diagnosis:
    fake = fake_reader(model, TASK, lambda m, at, d: 0.3 if at == 0 and m != "pine" else 1.0)
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
    assert "exactly 0" in rows["pine"]


def test_commands_are_code_on_the_page_and_nothing_escapes(diagnosis: Diagnosis) -> None:
    page = html_report(replace(diagnosis, notes=("Try `a <b>`, not <i>.",)))
    assert "<li>Try <code>a &lt;b&gt;</code>, not &lt;i&gt;.</li>" in page
    assert "<code>rag-middle calibrate --method positional_hidden_states</code>" in page
    assert "`" not in page


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


def test_a_legend_is_no_wider_than_its_chart(diagnosis: Diagnosis) -> None:
    assert legend_columns(["none", *METHODS], 3) == 3
    assert legend_columns(["none: mean 58 %", "positional_hidden_states:reader: mean 40 %"], 2) == 1
    curves = replace(
        diagnosis.curves,
        curves=tuple(
            replace(curve, label=curve.label.ljust(34, "x")) for curve in diagnosis.curves.curves
        ),
    )
    figure = plot_position_curves(curves)
    figure.draw_without_rendering()
    [axes] = figure.axes
    legend, drawn = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.width <= drawn.width
    assert drawn.width >= 0.75 * figure.bbox.width


def test_the_bundled_reader_goes_by_its_name_and_not_by_its_path() -> None:
    assert is_reader(reader_path())
    assert not is_reader("meta-llama/Llama-2-7b-chat-hf")
    reader = RagMiddleModel.from_pretrained(reader_path(), device="cpu")
    assert model_identity(reader)["name"] == READER_NAME
