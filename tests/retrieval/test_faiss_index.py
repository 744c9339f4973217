"""Searching, adding and deleting; what an embedder may return."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rag_middle.documents import Document
from rag_middle.errors import ConfigError, FileFormatError, OutputWriteError
from rag_middle.retrieval import FaissIndex
from tests.retrieval.embedding import HashingEmbedder

CITIES = {
    "lyon": "Lyon lies on the Rhone",
    "nantes": "Nantes lies on the Loire",
    "paris": "Paris is the capital",
    "bread": "Bake bread for one hour",
}


def _chunk(id_: str, text: str, source: str = "cities.txt") -> Document:
    return Document(text, id=id_, metadata={"source": source})


def _index() -> FaissIndex:
    index = FaissIndex(HashingEmbedder())
    index.add(_chunk(id_, text) for id_, text in CITIES.items())
    return index


def _found(index: FaissIndex, query: str, k: int = 20) -> list[str | None]:
    return [document.id for document in index.search(query, k)]


def test_the_closest_chunks_come_first_with_their_cosine() -> None:
    index = _index()
    found = index.search("Lyon lies on which Rhone", 2)
    assert [document.id for document in found] == ["lyon", "nantes"]
    embed = index.embedder.embed
    expected = float((embed(["Lyon lies on which Rhone"]) @ embed([CITIES["lyon"]]).T).item())
    assert found[0].metadata["score"] == pytest.approx(expected, abs=1e-6)  # float32 sums
    assert found[0].metadata["source"] == "cities.txt"


def test_what_is_deleted_is_not_found_and_can_come_back() -> None:
    index = _index()
    index.add([_chunk("recipe", "Bake a cake", source="recipes.txt")])
    assert index.delete(["lyon", "unknown"]) == 1
    assert index.delete(source="recipes.txt") == 1
    assert "lyon" not in index
    assert sorted(_found(index, "Lyon bake")) == ["bread", "nantes", "paris"]
    index.add([_chunk("lyon", CITIES["lyon"])])
    assert _found(index, "Lyon", k=1) == ["lyon"]
    assert index.delete(source="cities.txt") == 4
    assert (len(index), index.search("Lyon")) == (0, [])


def test_a_document_under_a_known_id_replaces_it_and_one_without_an_id_gets_one() -> None:
    index = _index()
    assert index.add([_chunk("lyon", "Lyon lies on the Saone")]) == ["lyon"]
    assert len(index) == 4
    assert index.search("Lyon Saone", 1)[0].text == "Lyon lies on the Saone"
    answers = [Document("Yes.", metadata={"asked": asked}) for asked in ("Open?", "Free?")]
    first, second, third = index.add([*answers, answers[0]])
    assert (first == third, first == second, len(index)) == (True, False, 6)
    with pytest.raises(ConfigError, match="Two different documents have the id 'page'"):
        index.add([_chunk("page", "a"), _chunk("page", "b")])
    with pytest.raises(ConfigError, match="ids must be a list"):
        index.delete("lyon")


def test_syncing_puts_chunks_and_equal_scores_in_the_order_given(tmp_path: Path) -> None:
    index = FaissIndex(HashingEmbedder())
    index.sync(_chunk(str(number), "the same words") for number in range(40))
    wanted = [str(number) for number in reversed(range(5, 50))]
    for chosen in (wanted, wanted[::2], wanted):
        index.sync(_chunk(id_, "the same words") for id_ in chosen)
        assert [document.id for document in index.documents] == chosen
        assert _found(index, "same words", k=50) == chosen
    index.save(tmp_path / "index")
    loaded = FaissIndex.load(tmp_path / "index", HashingEmbedder())
    assert _found(loaded, "same words", k=50) == wanted
    assert loaded.delete(["7"]) == 1
    loaded.add([_chunk("new", "the same words")])
    assert _found(loaded, "same words", k=50) == [id_ for id_ in wanted if id_ != "7"] + ["new"]


def test_an_embedder_that_fails_leaves_the_index_as_it_was() -> None:
    index = _index()

    def fail(texts: object) -> object:
        raise KeyboardInterrupt

    index.embedder.embed = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        index.sync([_chunk("rome", "Rome")])
    index.embedder = HashingEmbedder()
    assert sorted(_found(index, "Lyon")) == sorted(CITIES)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((1, 3)), r"shape \(1, 64\), finite and not zero; got shape \(1, 3\)"),
        (np.full((1, 64), np.nan), "lengths from nan"),
    ],
)
def test_vectors_that_are_none_are_refused(vectors: np.ndarray, message: str) -> None:
    index = _index()
    index.embedder.embed = lambda texts: vectors  # type: ignore[method-assign, assignment]
    with pytest.raises(ConfigError, match=message):
        index.add([_chunk("rome", "Rome")])
    assert len(index) == 4


class Questions(HashingEmbedder):
    """Embeds questions in another way than documents."""

    def embed_query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.embed(["Paris is the capital" for _ in texts])


def test_questions_are_embedded_as_questions() -> None:
    index = FaissIndex(Questions())
    index.add(_chunk(id_, text) for id_, text in CITIES.items())
    assert _found(index, "Lyon", k=1) == ["paris"]


# On disk


def test_a_saved_index_is_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    index = _index()
    index.save(tmp_path / "index")
    index.delete(["lyon"])
    index.save(tmp_path / "index")
    loaded = FaissIndex.load(tmp_path / "index", HashingEmbedder())
    assert loaded.documents == index.documents
    assert loaded.search("Nantes Loire") == index.search("Nantes Loire")
    assert len(list((tmp_path / "index").iterdir())) == 3
    FaissIndex(HashingEmbedder()).save(tmp_path / "empty")
    assert FaissIndex.load(tmp_path / "empty", HashingEmbedder()).search("Lyon") == []


def test_an_index_is_not_put_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputWriteError, match=r"something else \('notes.txt'\)"):
        _index().save(tmp_path)


def test_what_is_no_whole_index_of_this_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"There is no index .*rag-middle index"):
        FaissIndex.load(tmp_path, HashingEmbedder())
    _index().save(tmp_path)
    manifest = tmp_path / "manifest.json"
    saved = manifest.read_text()
    for damaged in ("{", "[]", "{}", saved.replace('"version": 4', '"version": 1')):
        manifest.write_text(damaged)
        with pytest.raises(FileFormatError, match="rebuild=True"):
            FaissIndex.load(tmp_path, HashingEmbedder())
    manifest.write_text(saved)
    for file in [*tmp_path.glob("vectors-*"), *tmp_path.glob("chunks-*")]:
        content = file.read_bytes()
        for damage in (content[: len(content) // 2], b""):
            file.write_bytes(damage)
            with pytest.raises(FileFormatError, match="rebuild=True"):
                FaissIndex.load(tmp_path, HashingEmbedder())
        file.write_bytes(content)
    with pytest.raises(FileFormatError, match="the embedder hashing, not with other"):
        FaissIndex.load(tmp_path, HashingEmbedder(name="other"))


def test_metadata_that_is_no_json_is_named(tmp_path: Path) -> None:
    index = FaissIndex(HashingEmbedder())
    index.add([Document("Lyon", metadata={"at": object()})])
    with pytest.raises(ConfigError, match="cannot be saved as JSON"):
        index.save(tmp_path)


def test_an_embedder_whose_weights_have_changed_is_refused(tmp_path: Path) -> None:
    _index().save(tmp_path)
    for use in (lambda it: it.search("Lyon"), lambda it: it.add([_chunk("rome", "Rome")])):
        index = FaissIndex.load(tmp_path, HashingEmbedder(seed=1))
        with pytest.raises(FileFormatError, match=r"gives other vectors .*rebuild=True"):
            use(index)
