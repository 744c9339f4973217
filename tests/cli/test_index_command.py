"""``rag-middle index``."""

from importlib import import_module
from pathlib import Path

import pytest

from rag_middle import retrieval
from rag_middle.retrieval import FaissIndex
from tests.cli.conftest import Run
from tests.retrieval.embedding import HashingEmbedder


class WordEmbedder(HashingEmbedder):
    """Stands for a sentence-transformers model; its tokens are words."""

    def __init__(self, name: str | None, *, device: str | None) -> None:
        super().__init__(name=name or "default")

    def count_tokens(self, text: str) -> int:
        return len(text.split())


@pytest.fixture(autouse=True)
def _word_embedder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Imported later, it would keep the embedder of these tests.
    import_module("rag_middle.answering.answerer")
    monkeypatch.setattr(retrieval, "SentenceTransformerEmbedder", WordEmbedder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "lyon.txt").write_text("Lyon lies on the Rhône.")
    (folder / "nantes.txt").write_text("Nantes lies on the Loire.")
    return folder


def test_documents_are_indexed_and_kept_up_to_date(run: Run, docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    assert run("index", docs, "--out", out).out == (
        f"2 chunks of 2 files: 2 added, 0 kept, 0 removed\n{out}\n"
    )
    assert "nothing has changed" in run("index", docs, "--out", out).out
    (docs / "rome.txt").write_text("Rome lies on the Tiber.")
    assert "3 chunks of 3 files: 1 added, 2 kept, 0 removed" in run("index", docs, "--out", out).out
    assert len(FaissIndex.load(out, WordEmbedder(None, device=None))) == 3


def test_what_was_skipped_is_told(run: Run, docs: Path, tmp_path: Path) -> None:
    for number in range(12):
        (docs / f"{number:02d}.png").write_bytes(b"\x89PNG")
    shown = run("index", docs, "--out", tmp_path / "index")
    assert "skipped 00.png: '.png' is not read." in shown.err
    assert "2 more were skipped; --json lists them all." in shown.err
    described = run("index", docs, "--out", tmp_path / "index", "--json").json
    assert len(described["skipped"]) == 12
    assert (described["sources"], described["chunks"], described["changes"]) == (2, 2, None)
