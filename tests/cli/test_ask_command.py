"""``rag-middle ask``."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rag_middle import Document
from rag_middle.answering import Source, results
from rag_middle.cli.ask import used_sources
from tests.cli.answering import QUESTION
from tests.cli.conftest import Finished, Run

TOKENS = "--max-new-tokens", "6"


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


def test_documents_cannot_pass_for_an_index(ask: Run, run: Run, docs: Path) -> None:
    ask("--index", docs.parent / "index")
    for name in (docs.parent / "index").iterdir():
        (docs / name.name).write_bytes(name.read_bytes())
    shown = run("ask", QUESTION, "--docs", docs)
    assert shown.status == 2
    assert "is a saved index: name it with --index if you trust it" in shown.err


# What goes wrong: the next step is named, and nothing that was indexed is lost.


def _refused(shown: Finished, *parts: str) -> None:
    assert (shown.status, shown.out) == (2, "")
    assert "Error: " in shown.err
    assert "Traceback" not in shown.err
    for part in parts:
        assert part in shown.err


def test_a_file_that_cannot_be_read(run: Run, ask: Run, docs: Path, chat_model: Path) -> None:
    reason = "it cannot be read (PdfStreamError"
    (docs / "broken.pdf").write_bytes(b"%PDF-1.4 no more")
    shown = ask()
    assert shown.status == 0  # the others are read
    assert "skipped broken.pdf" in shown.err
    assert reason in shown.err
    assert "1 skipped: `rag-middle index" in ask().err  # later in one line
    assert reason in ask("--json").json["skipped"][0]["reason"]
    alone = ("ask", QUESTION, "--docs", docs / "broken.pdf", "-m", chat_model)
    _refused(run(*alone), reason)


def test_no_network(run: Run, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    index = docs.parent / "index"
    ask = ("ask", QUESTION, "--docs", docs, "--index", index)
    _refused(run(*ask, "--model", "nobody/nothing"), "Cannot load the", "HF_HUB_OFFLINE")
    assert not index.exists()  # known before anything was indexed
    _refused(run(*ask, "--embedder", "nobody/nothing"), "Cannot load the embedder")
    error = run(*ask, "--model", "nobody/nothing", "--json").json["error"]
    assert error["type"] == "ModelNotFoundError"
