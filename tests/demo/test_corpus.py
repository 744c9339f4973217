"""The demonstration's pages on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_middle.demo import corpus, saved_corpus
from rag_middle.errors import OutputWriteError


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_pages_and_questions_are_written_once_and_match(tmp_path: Path) -> None:
    saved = saved_corpus()
    assert saved.pages.is_relative_to(tmp_path / "cache" / "rag-middle")
    written = {path.name: path.stat().st_mtime_ns for path in saved.pages.iterdir()}
    assert len(written) == 400
    assert len(saved.questions) == 400
    assert {question.source for question in saved.questions} <= set(written)
    for question in saved.questions:
        assert question.attribute in saved.stated[question.title]
    lines = (saved.pages.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    on_disk = [json.loads(line)["question"] for line in lines]
    assert on_disk == [question.question for question in saved.questions]

    assert saved_corpus() == saved
    assert {path.name: path.stat().st_mtime_ns for path in saved.pages.iterdir()} == written


def test_an_interrupted_writing_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half.md").write_text("# Half")
        raise KeyboardInterrupt

    monkeypatch.setattr(corpus, "write_corpus", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved_corpus(tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(OutputWriteError, match="XDG_CACHE_HOME"):
        saved_corpus()


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    with pytest.raises(OutputWriteError, match="empty that folder"):
        saved_corpus(mine)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (mine / "notes.txt").read_text() == "keep"
