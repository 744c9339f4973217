"""Page, picture and data as files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rag_middle.demo import html_page, plot_demonstration, write_demonstration
from rag_middle.errors import OutputWriteError
from tests.demo.conftest import Make

ACCURACIES = {"none": [0.4, 0.9, 0.8], "pine": [0.9, 0.9, 0.9], "ms_poe": [0.2, 0.3, 0.1]}


@pytest.fixture(autouse=True)
def _matplotlib() -> None:
    pytest.importorskip("matplotlib")


def test_the_page_needs_nothing_else_and_says_what_was_found(
    make: Make,
) -> None:
    page = html_page(make(ACCURACIES), command="rag-middle demo --model 'a&b'")
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|<script""", page)
    assert "Is it &lt;so&gt;?" in page  # questions and answers are anybody's text
    assert "<so>" not in page
    assert "rag-middle demo --model &#39;a&amp;b&#39;" in page
    assert "Unmodified, a model is right in 90 % of cases" in page
    assert "An answer is right if it states the page" in page
    assert "3 further questions were left out" in page
    assert '<td data-label="at 0">40<small>[31, 50]</small></td>' in page  # Wilson's


def test_the_picture_shows_every_method_with_its_intervals(
    make: Make,
) -> None:
    [axes] = plot_demonstration(make(ACCURACIES)).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "Unmodified: mean 70 %",
        "PINE: mean 90 %",
        "Ms-PoE: mean 20 %",
        "chance level: 25 %",
    ]
    assert len(axes.containers) == 3  # error bars
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "2", "4"]


def test_three_files_are_written_whole(make: Make, tmp_path: Path) -> None:
    written = write_demonstration(make(ACCURACIES), tmp_path / "out", command="again")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["demo.html", "demo.json", "demo.png"]
    assert written.png.read_bytes().startswith(b"\x89PNG")
    data = json.loads(written.json.read_text())
    assert data["repeat"] == "again"
    assert [curve["label"] for curve in data["curves"]["curves"]] == list(ACCURACIES)
    assert data["findings"][0].startswith("Unmodified, a model")
    assert data["examples"][0]["different_answers"] == {"none": 2, "pine": 2, "ms_poe": 2}


def test_a_file_that_cannot_be_finished_leaves_the_old_one(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo.html").write_text("old")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_demonstration(make(ACCURACIES), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.html"]
    assert (tmp_path / "demo.html").read_text() == "old"


def test_a_folder_that_cannot_be_written_is_refused(make: Make, tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(OutputWriteError, match=re.escape(f"out={str(taken)!r}")):
        write_demonstration(make(ACCURACIES), taken)
