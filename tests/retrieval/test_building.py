"""From a folder to an index, and back to date with as little work as can be."""

import random
from pathlib import Path

import pytest

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import FileFormatError, OutputWriteError
from rag_middle.retrieval import (
    Built,
    Changes,
    FaissIndex,
    Retriever,
    build_index,
    default_index_folder,
)
from tests.reader.questions import write_lines
from tests.retrieval.embedding import HashingEmbedder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "lyon.md").write_text("# Lyon\n\nLyon lies on the Rhône.\n")
    (folder / "nantes.md").write_text("# Nantes\n\nNantes lies on the Loire.\n")
    (folder / "bread.txt").write_text("Bake bread for one hour.")
    return folder


@pytest.fixture
def embedder() -> HashingEmbedder:
    return HashingEmbedder()


def _build(docs: Path, embedder: HashingEmbedder, **options: object) -> Built:
    embedder.embedded.clear()
    folder = docs.parent / "index"
    return build_index(docs, folder, embedder=embedder, **options)  # type: ignore[arg-type]


def test_documents_are_found_with_source_offsets_and_score(
    docs: Path, embedder: HashingEmbedder
) -> None:
    built = _build(docs, embedder)
    first, second = Retriever(index=built.index, top_k=2)("Which river is Lyon on, the Rhône?")
    assert (first.title, first.text) == ("Lyon", "Lyon lies on the Rhône.")
    assert set(first.metadata) == {*("score", "source", "start", "end", "first_line", "last_line")}
    assert first.metadata["score"] > second.metadata["score"]
    assert first.id in built.index
    source = (docs / first.metadata["source"]).read_text()
    assert source[first.metadata["start"] : first.metadata["end"]] == first.text
    prompt = ContextPrompt(documents=[first, second], suffix="Which river?")
    assert "Lyon\nLyon lies on the Rhône." in prompt.text


def test_an_unchanged_folder_is_not_read_twice(docs: Path, embedder: HashingEmbedder) -> None:
    (docs / "picture.png").write_bytes(b"\x89PNG")
    first = _build(docs, embedder)
    assert first.changes == Changes(added=3, kept=0, removed=0)
    second = _build(docs, embedder)
    assert (second.changes, embedder.embedded) == (None, [])
    assert second.index.documents == first.index.documents
    assert second.skipped == first.skipped
    assert [each.source for each in second.skipped] == ["picture.png"]


def test_only_what_has_changed_is_embedded_again(docs: Path, embedder: HashingEmbedder) -> None:
    _build(docs, embedder)
    (docs / "lyon.md").write_text("# Lyon\n\nLyon lies on the Saône.\n")
    (docs / "bread.txt").unlink()
    (docs / "rome.txt").write_text("Rome lies on the Tiber.")
    built = _build(docs, embedder)
    assert built.changes == Changes(added=2, kept=1, removed=2)
    _, *new = embedder.embedded  # the first text is compared with its saved vector
    assert new == ["Lyon\nLyon lies on the Saône.", "rome\nRome lies on the Tiber."]
    assert _build(docs, embedder).changes is None
    assert {chunk.metadata["source"] for chunk in built.index.documents} == {
        "lyon.md",
        "nantes.md",
        "rome.txt",
    }


def _same_as_rebuilt(built: Built, docs: Path) -> None:
    anew = build_index(docs, None, embedder=HashingEmbedder())
    assert built.index.documents == anew.index.documents
    for chunk in anew.index.documents:  # under its own vector, and next to all others
        for query in (chunk.render(), chunk.text):
            hits, expected = (index.search(query, k=4) for index in (built.index, anew.index))
            assert hits == expected


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.one_in(2)
def test_an_updated_index_is_that_of_a_rebuild(
    docs: Path, embedder: HashingEmbedder, seed: int
) -> None:
    draw = random.Random(seed)
    words = ["Loire", "Rhône", "Seine", "Tiber", "lies", "on", "the"]

    def text() -> str:
        return " ".join(draw.choices(words, k=draw.randint(1, 4)))

    lines = {"notes": [text() for _ in range(4)], "more": [text() for _ in range(3)]}
    before: set[tuple[str, str]] = set()
    for _ in range(12):
        name = draw.choice(list(lines))
        match draw.choice(["insert", "insert", "delete", "rename", "file", "rename file"]):
            case "insert":
                lines[name].insert(draw.randint(0, len(lines[name])), text())
            case "delete" if len(lines[name]) > 1:
                lines[name].pop(draw.randrange(len(lines[name])))
            case "rename":
                (docs / f"{name}.jsonl").unlink(missing_ok=True)
                texts = lines.pop(name)
                lines[f"{draw.choice('abyz')}_{len(texts)}"] = texts
            case "file":
                (docs / f"{draw.choice('kmp')}.txt").write_text(text())
            case "rename file":
                files = sorted(docs.glob("*.txt"))
                draw.choice(files).rename(docs / f"{draw.choice('klmnp')}.txt")
        for name, texts in lines.items():
            write_lines(docs / f"{name}.jsonl", *({"text": text} for text in texts))
        built = _build(docs, embedder)
        now = {(chunk.metadata["source"], chunk.render()) for chunk in built.index.documents}
        new = {text for _, text in now} - {text for _, text in before}
        assert new <= set(embedder.embedded)
        assert len(embedder.embedded) <= len(new) + 1  # and one to compare with its saved vector
        before = now
        _same_as_rebuilt(built, docs)


def test_a_saved_index_stays_split_as_it_was(docs: Path, embedder: HashingEmbedder) -> None:
    _build(docs, embedder)
    smaller = _build(docs, embedder, chunk_size=12)
    assert len(smaller.index) == 6
    assert _build(docs, embedder).changes is None
    (docs / "rome.txt").write_text("Rome lies on the Tiber.")
    assert len(_build(docs, embedder).index) == len(smaller.index) + 2
    assert len(_build(docs, embedder, rebuild=True).index) == 4


def test_chunks_are_measured_in_the_tokens_of_the_embedder(
    docs: Path, embedder: HashingEmbedder
) -> None:
    embedder.count_tokens = lambda text: len(text.split())  # type: ignore[attr-defined]
    chunks = build_index(docs, embedder=embedder, chunk_size=3).index.documents
    assert max(len(chunk.text.split()) for chunk in chunks) == 3
    embedder.max_tokens = 4  # type: ignore[attr-defined]
    assert build_index(docs, embedder=embedder).index.documents == chunks


def test_chunks_that_were_added_by_hand_are_not_removed(
    docs: Path, embedder: HashingEmbedder
) -> None:
    folder = docs.parent / "index"
    index = _build(docs, embedder).index
    index.add([Document("Lille lies on the Deûle.", id="row 1")])
    index.save(folder)
    with pytest.raises(FileFormatError, match=r"was changed after it was built.*rebuild=True"):
        _build(docs, embedder)
    assert "row 1" in FaissIndex.load(folder, embedder)
    assert "row 1" not in _build(docs, embedder, rebuild=True).index


def test_an_index_is_not_put_among_documents(docs: Path, embedder: HashingEmbedder) -> None:
    with pytest.raises(OutputWriteError, match="choose an empty or a new folder"):
        build_index(docs, docs, embedder=embedder)
    assert embedder.embedded == []  # refused before the work
    assert not list(docs.glob("vectors-*"))


def test_the_default_folder_tells_corpora_and_embedders_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folders = [
        default_index_folder("docs", "minilm"),
        default_index_folder("other", "minilm"),
        default_index_folder("docs", "other"),
    ]
    monkeypatch.setattr("rag_middle.retrieval.building.INDEX_VERSION", -1)
    folders.append(default_index_folder("docs", "minilm"))
    monkeypatch.undo()
    assert len(set(folders)) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folders[0] == default_index_folder(Path("docs").resolve(), "minilm")
    assert folders[0].parent == tmp_path / "rag-middle" / "indexes"
    assert folders[0].name.startswith("docs-")
