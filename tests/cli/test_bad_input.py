"""What goes wrong with documents, indexes and names, from the command line: the next step is named,
and nothing that was indexed is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_middle.retrieval import FaissIndex
from tests.cli.answering import QUESTION, NamedEmbedder, use_named_embedder, write_documents
from tests.cli.conftest import Finished, Run

pytest.importorskip("faiss")
pytest.importorskip("filelock")
pytest.importorskip("pypdf")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_named_embedder(monkeypatch, tmp_path / "cache")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "docs")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def ask(run: Run, chat_model: Path, docs: Path, index: Path) -> Run:
    """``ask(..., docs=...)``: a question about documents whose index is kept in `index`."""

    def invoke(*arguments: object, docs: Path = docs, question: str = QUESTION) -> Finished:
        given = ("--docs", docs, "--index", index, "--max-new-tokens", "4", *arguments)
        model = () if "--model" in arguments else ("--model", chat_model)
        return run("ask", question, *given, *model)

    return invoke


def _refused(shown: Finished, *parts: str) -> None:
    assert (shown.status, shown.out) == (2, "")
    assert any(line.startswith("Error: ") for line in shown.err.splitlines())
    assert "Traceback" not in shown.err
    for part in parts:
        assert part in shown.err


def _indexed(index: Path, embedder: str = "default") -> set[str]:
    loaded = FaissIndex.load(index, NamedEmbedder(embedder))
    return {chunk.metadata["source"] for chunk in loaded.documents}


TOWNS = {"lyon.md", "nantes.md", "rome.md"}


def test_a_file_that_cannot_be_read(ask: Run, docs: Path, index: Path) -> None:
    reason = "it cannot be read (PdfStreamError"
    (docs / "broken.pdf").write_bytes(b"%PDF-1.4 no more")
    shown = ask()
    assert shown.status == 0  # the others are read
    assert "skipped broken.pdf" in shown.err
    assert reason in shown.err
    assert _indexed(index) == TOWNS
    assert "1 skipped: `rag-middle index" in ask().err  # later in one line
    assert reason in ask("--json").json["skipped"][0]["reason"]
    _refused(ask(docs=docs / "broken.pdf"), reason)  # alone there is nothing else to read
    assert _indexed(index) == TOWNS


def test_an_index_made_with_another_embedder(ask: Run, index: Path) -> None:
    ask()
    refused = ask("--embedder", "other")
    _refused(refused, "was made with the embedder default", "(--embedder default)", "(--rebuild).")
    assert _indexed(index) == TOWNS
    assert ask("--embedder", "other", "--rebuild").status == 0
    assert _indexed(index, "other") == TOWNS


def test_no_network(ask: Run, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _refused(ask("--model", "nobody/nothing"), "Cannot load the", "HF_HUB_OFFLINE")
    assert not index.exists()  # known before anything was indexed
    _refused(ask("--embedder", "nobody/nothing"), "Cannot load the embedder", "HF_HUB_OFFLINE")
    error = ask("--model", "nobody/nothing", "--json").json["error"]
    assert error["type"] == "ModelNotFoundError"
