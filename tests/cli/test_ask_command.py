"""``rag-middle ask``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rag_middle import Document
from rag_middle.answering import Source, results
from rag_middle.cli.ask import used_sources
from tests.cli.answering import QUESTION, use_named_embedder, write_documents
from tests.cli.conftest import Finished, Run

pytest.importorskip("faiss")
pytest.importorskip("filelock")

TOKENS = "--max-new-tokens", "6"


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_named_embedder(monkeypatch, tmp_path / "cache")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "docs")


@pytest.fixture
def ask(run: Run, docs: Path, chat_model: Path) -> Run:
    """``ask(...)``: a question about `docs`, with further arguments."""

    def invoke(*arguments: object, **options: Any) -> Finished:
        given = ("--docs", docs, "--model", chat_model, *TOKENS, *arguments)
        return run("ask", QUESTION, *given, **options)

    return invoke


def test_the_answer_and_its_sources_go_to_standard_output(ask: Run) -> None:
    shown = ask("--method", "pine", "--all-sources")
    as_json = ask("--method", "pine", "--json")
    described = as_json.json
    assert (shown.status, as_json.err, described["skipped"]) == (0, "", [])
    assert (described["question"], described["method"], described["applied"]) == (
        QUESTION,
        "pine",
        True,
    )
    text, _, sources = shown.out.partition("\n\nSources, best first:\n")
    assert text == described["text"]
    header, *lines = sources.splitlines()
    assert header.split() == ["position", "score", "source"]
    rows, snippets = lines[::2], lines[1::2]
    for row, snippet, source in zip(rows, snippets, described["sources"], strict=True):
        position, score, file, *title = row.split()
        assert (position, score) == (str(source["position"]), f"{source['score']:.3f}")
        assert file == source["path"] + ","
        assert title[0].startswith("line")
        assert title[-1] == source["title"]
        assert source["text"].startswith(snippet.strip().rstrip("…"))
    assert rows[0].split()[2] == "nantes.md,"
    assert "\npine · " in shown.err
    assert f"{described['usage']['prompt_tokens']} prompt tokens in 3 documents" in shown.err
    assert "6 generated (length) · retrieval 0." in shown.err


def test_sources_are_those_that_the_answer_names(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(shown: Finished) -> list[str]:
        return [line.split()[2] for line in shown.out.splitlines() if ".md" in line]

    assert sorted(named(ask())) == ["lyon.md,", "nantes.md,", "rome.md,"]  # none: all that it read
    monkeypatch.setattr(results, "mentions", lambda _, title: [(0, 1)] * (title == "Nantes"))
    shown = ask()
    assert named(shown) == ["nantes.md,"]
    assert "2 more were found (--all-sources" in shown.err
    assert len(named(ask("--all-sources"))) == 3


def test_a_document_of_several_passages_is_one_source() -> None:
    sources = tuple(
        Source(document=Document("x", metadata={"source": path}), position=position, cited=cited)
        for path, position, cited in (
            ("a", 1, False),
            ("b", 0, True),
            ("a", 2, False),
            ("b", 3, True),
        )
    )
    answer: Any = SimpleNamespace(sources=sources, cited=sources[1::2])
    assert used_sources(answer) == [sources[1]]
    answer.cited = ()
    assert used_sources(answer) == [sources[0], sources[1]]


def test_the_index_is_built_once(ask: Run, docs: Path, tmp_path: Path) -> None:
    ask()
    [folder] = (tmp_path / "cache" / "rag-middle" / "indexes").iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    ask()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    (docs / "bordeaux.md").write_text("# Bordeaux\n\nBordeaux lies on the Garonne.")
    assert len(ask("--json").json["sources"]) == 4


def test_an_index_can_be_kept_elsewhere_and_used_without_its_documents(
    run: Run, ask: Run, chat_model: Path, docs: Path, tmp_path: Path
) -> None:
    expected = ask("--index", tmp_path / "index", "--json").json
    assert not (tmp_path / "cache").exists()
    for path in docs.iterdir():
        path.unlink()
    alone = ("ask", QUESTION, "--index", tmp_path / "index", "--model", chat_model, *TOKENS)
    found = run(*alone, "--json").json
    assert (found["text"], found["sources"]) == (expected["text"], expected["sources"])


def test_the_prompt_can_be_seen(ask: Run) -> None:
    shown = ask("--show-prompt", "--top-k", "1").err
    assert "\nAnswer the question from the documents below" in shown
    assert f"\n\nNantes\nNantes lies on the Loire.\n\nQuestion: {QUESTION}\nAnswer:" in shown
    prompt = ask("--show-prompt", "--top-k", "2", "--json").json["prompt"]
    assert prompt.count("lies on the") == 2
    assert prompt.endswith(f"\n\nQuestion: {QUESTION}\nAnswer:")


def test_the_prompt_can_be_written_otherwise(ask: Run, tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_text(json.dumps({"document": "({title}) {text}", "separator": "\n"}))
    prompt = ask("--prompt-template", path, "--show-prompt", "--json").json["prompt"]
    assert prompt.startswith("(Nantes) Nantes lies on the Loire.\n")


def test_documents_cannot_pass_for_an_index(ask: Run, run: Run, docs: Path) -> None:
    ask("--index", docs.parent / "index")
    for name in (docs.parent / "index").iterdir():
        (docs / name.name).write_bytes(name.read_bytes())
    shown = run("ask", QUESTION, "--docs", docs)
    assert shown.status == 2
    assert "is a saved index: name it with --index if you trust it" in shown.err


def test_a_blank_question_is_refused_before_anything_is_loaded(run: Run, tmp_path: Path) -> None:
    shown = run("ask", " ", "--docs", tmp_path / "none")
    assert shown.status == 2
    assert "There is no question" in shown.err
