"""Searching, adding and deleting; what an embedder may return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rag_middle.errors import EmbedderError, RetrievalConfigError
from rag_middle.retrieval import Changes, Chunk, FaissIndex
from rag_middle.retrieval import vectors as vectors_module
from rag_middle.retrieval.vectors import Kind, VectorStore
from tests.retrieval.embedding import HashingEmbedder

pytest.importorskip("faiss")

CITIES = {
    "lyon": "Lyon lies on the Rhone",
    "nantes": "Nantes lies on the Loire",
    "paris": "Paris is the capital",
    "bread": "Bake bread for one hour",
}


def _chunk(id_: str, text: str, source: str = "cities.txt") -> Chunk:
    return Chunk(id=id_, text=text, source=source, end=len(text))


def _index(kind: str = "auto") -> FaissIndex:
    index = FaissIndex(HashingEmbedder(), kind=kind)  # type: ignore[arg-type]
    index.add(_chunk(id_, text) for id_, text in CITIES.items())
    return index


def _found(index: FaissIndex, query: str, k: int = 20) -> list[str]:
    return [hit.chunk.id for hit in index.search(query, k)]


@pytest.mark.parametrize("kind", ["auto", "flat", "ivf"])
def test_the_closest_chunks_come_first_with_their_cosine(kind: str) -> None:
    index = _index(kind)
    hits = index.search("Lyon lies on which Rhone", 2)
    assert [hit.chunk.id for hit in hits] == ["lyon", "nantes"]
    embed = index.embedder.embed
    expected = float((embed(["Lyon lies on which Rhone"]) @ embed([CITIES["lyon"]]).T).item())
    assert hits[0].score == pytest.approx(expected, abs=1e-6)  # float32 sums
    assert index.search(CITIES["paris"], 1)[0].score == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_more_are_asked_for_than_there_are(kind: str) -> None:
    assert sorted(_found(_index(kind), "Lyon", k=1000)) == sorted(CITIES)


def test_an_empty_index_finds_nothing() -> None:
    assert FaissIndex(HashingEmbedder()).search("Lyon") == []


def test_vectors_are_searched_as_texts_are_whatever_their_length() -> None:
    index = _index()
    [vector] = index.embedder.embed(["capital"])
    assert index.search(7 * vector, 4) == index.search("capital", 4)
    assert index.search_many(np.stack([vector, vector]), 2) == [index.search("capital", 2)] * 2


def test_equal_scores_come_in_the_order_of_adding() -> None:
    index = FaissIndex(HashingEmbedder())
    index.add(_chunk(str(number), "the same words") for number in range(50))
    assert _found(index, "same words", k=50) == [str(number) for number in range(50)]


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_what_is_deleted_is_not_found_and_can_come_back(kind: str) -> None:
    index = _index(kind)
    index.add([_chunk("recipe", "Bake a cake", source="recipes.txt")])
    assert index.delete(["lyon", "unknown"]) == 1
    assert index.delete(source="recipes.txt") == 1
    assert "lyon" not in index
    assert sorted(_found(index, "Lyon bake")) == ["bread", "nantes", "paris"]
    index.add([_chunk("lyon", CITIES["lyon"])])
    assert _found(index, "Lyon", k=1) == ["lyon"]
    assert index.delete(source="cities.txt") == 4
    assert (len(index), index.search("Lyon")) == (0, [])


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_syncing_puts_chunks_and_equal_scores_in_the_order_given(
    kind: Kind, tmp_path: Path
) -> None:
    index = FaissIndex(HashingEmbedder(), kind=kind)
    index.sync(_chunk(str(number), "the same words") for number in range(40))
    wanted = [str(number) for number in reversed(range(5, 50))]
    for chosen in (wanted, wanted[::2], wanted):
        index.sync(_chunk(id_, "the same words") for id_ in chosen)
        assert [chunk.id for chunk in index.chunks] == chosen
        assert _found(index, "same words", k=50) == chosen
    index.save(tmp_path / "index")
    loaded = FaissIndex.load(tmp_path / "index", HashingEmbedder())
    assert _found(loaded, "same words", k=50) == wanted
    assert loaded.delete(["7"]) == 1
    loaded.add([_chunk("new", "the same words")])
    assert _found(loaded, "same words", k=50) == [id_ for id_ in wanted if id_ != "7"] + ["new"]


def test_a_chunk_is_embedded_once() -> None:
    index = _index()
    embedder = index.embedder
    assert isinstance(embedder, HashingEmbedder)
    embedder.embedded.clear()
    new = _chunk("rome", "Rome is a capital")
    assert index.add([_chunk("lyon", CITIES["lyon"]), new, new]) == 1
    assert embedder.embedded == ["Rome is a capital"]


def test_syncing_embeds_what_is_new_and_drops_what_is_gone() -> None:
    index = _index()
    embedder = index.embedder
    assert isinstance(embedder, HashingEmbedder)
    embedder.embedded.clear()
    renewed = Chunk(id="lyon", text=CITIES["lyon"], source="moved.txt", metadata={"page": 2})
    changes = index.sync([_chunk("rome", "Rome"), renewed])
    assert changes == Changes(added=1, kept=1, removed=3)
    assert embedder.embedded == ["Rome"]
    assert {chunk.id for chunk in index.chunks} == {"lyon", "rome"}
    assert index.search("Lyon", 1)[0].chunk == renewed


def test_titles_are_searched() -> None:
    index = FaissIndex(HashingEmbedder())
    index.add([Chunk(id="a", text="It lies there.", source="a", title="Lyon"), _chunk("b", "It")])
    assert _found(index, "Lyon", k=1) == ["a"]


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
        (np.ones((1, 3)), r"shape \(1, 64\), got \(1, 3\)"),
        (np.ones((2, 64)), r"shape \(1, 64\), got \(2, 64\)"),
        (np.ones((1, 64)), "length 1, got lengths from 8 to 8"),
        (np.zeros((1, 64)), "length 1, got lengths from 0 to 0"),
        (np.full((1, 64), np.nan), "length 1, got lengths from nan"),
    ],
)
def test_vectors_that_are_none_are_refused(vectors: np.ndarray, message: str) -> None:
    index = _index()
    index.embedder.embed = lambda texts: vectors  # type: ignore[method-assign, assignment]
    with pytest.raises(EmbedderError, match=message):
        index.add([_chunk("rome", "Rome")])
    assert len(index) == 4


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        ("Lyon", 0, "k must be a whole number, at least 1, got 0"),
        ("Lyon", True, "k must be a whole number, at least 1, got True"),
        (" \n", 5, "The query is empty"),
        (np.zeros(64), 5, "zero or not finite"),
        (np.ones(63), 5, r"\[queries, 64\], got \[1, 63\]"),
        (np.ones((2, 64)), 5, r"got \[1, 2, 64\]"),
    ],
)
def test_wrong_questions_are_refused(query: object, k: int, message: str) -> None:
    with pytest.raises(RetrievalConfigError, match=message):
        _index().search(query, k)  # type: ignore[arg-type]


def test_a_single_id_is_no_list_of_ids() -> None:
    with pytest.raises(RetrievalConfigError, match="ids must be a list of ids, got 'lyon'"):
        _index().delete("lyon")


@pytest.mark.parametrize("dimension", [0, None, 64.0])
def test_a_dimension_that_is_none_is_refused(dimension: object) -> None:
    embedder = HashingEmbedder()
    embedder.dimension = dimension  # type: ignore[assignment]
    with pytest.raises(EmbedderError, match="must be a whole number, at least 1, got"):
        FaissIndex(embedder)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RetrievalConfigError, match="auto, flat, ivf; got 'hnsw'"):
        FaissIndex(HashingEmbedder(), kind="hnsw")  # type: ignore[arg-type]


# Many vectors


def _clustered(count: int, dimension: int = 32) -> np.ndarray:
    random = np.random.default_rng(0)
    centres = random.normal(size=(100, dimension))
    vectors = centres[random.integers(0, 100, count)] + 0.7 * random.normal(size=(count, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_groups_find_nearly_what_comparing_with_all_finds() -> None:
    vectors = _clustered(6000)
    flat, grouped = VectorStore(32, "flat"), VectorStore(32, "ivf")
    for store in (flat, grouped):
        for start in range(0, 6000, 1500):  # groups are made anew as the index grows
            store.add(vectors[start : start + 1500], range(start, start + 1500))
    assert grouped.index.nlist >= 39
    expected, found = (store.search(vectors[:200], 10) for store in (flat, grouped))
    shared = [
        len({key for key, _ in exact} & {key for key, _ in near})
        for exact, near in zip(expected, found, strict=True)
    ]
    assert np.mean(shared) / 10 > 0.95
    assert np.array_equal(grouped.keys(), np.arange(6000))
    for row in grouped.search(vectors[:2], 5999):  # more than the groups searched at first hold
        assert len({key for key, _ in row} - {-1}) == 5999


def test_auto_groups_vectors_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors_module, "FLAT_LIMIT", 500)
    vectors = _clustered(600)
    store = VectorStore(32)
    store.add(vectors[:500], range(500))
    assert not store.grouped
    before = store.search(vectors[:20], 1)
    store.add(vectors[500:], range(500, 600))
    assert store.grouped
    assert [row[0][0] for row in store.search(vectors[:20], 1)] == [row[0][0] for row in before]
    assert len(store) == 600
