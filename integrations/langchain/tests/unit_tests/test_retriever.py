"""FaissRetriever: documents by meaning, with scores."""

import math
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from langchain_rag_middle import FaissRetriever
from rag_middle import ConfigError, FileFormatError


class Letters(Embeddings):
    """How often each letter occurs: not of length 1, and other letters for questions."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[text.lower().count(letter) for letter in "abcdefgr"] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text.replace("?", "r")])[0]


DOCUMENTS = [
    Document("a", id="first", metadata={"source": "x.txt"}),
    Document("a a a b", metadata={"source": "y.txt", "title": "Second"}),
    Document("b", metadata={"page": 3}),
    Document("r", metadata={}),
]


def test_the_best_come_first_with_their_cosine() -> None:
    retriever = FaissRetriever.from_documents(DOCUMENTS, Letters(), k=3)
    found = retriever.invoke("a")
    assert [document.page_content for document in found] == ["a", "a a a b", "b"]
    scores = [document.metadata["score"] for document in found]
    assert scores == pytest.approx([1.0, 3 / math.sqrt(10), 0.0], abs=1e-6)  # float32
    assert found[0].id == "first"
    assert (found[0].metadata["source"], found[0].metadata["title"]) == ("x.txt", "")
    assert found[1].metadata["title"] == "Second"
    assert found[2].metadata["page"] == 3


def test_the_names_of_other_retrievers_work_and_unknown_ones_are_refused() -> None:
    for settings in ({"top_k": 2}, {"similarity_top_k": 2}, {"search_kwargs": {"top_k": 2}}):
        retriever = FaissRetriever.from_documents(DOCUMENTS, Letters(), **settings)
        assert len(retriever.invoke("a")) == 2
    for name in ("score_threshold", "similarity_cutoff"):
        retriever = FaissRetriever.from_documents(DOCUMENTS, Letters(), **{name: 0.5})
        assert len(retriever.invoke("a")) == 2
    assert len(retriever.invoke("a", score_threshold=0.99)) == 1
    with pytest.raises(ConfigError, match="Did you mean 'min_score'"):
        FaissRetriever.from_documents(DOCUMENTS, Letters(), min_scor=0.5)
    with pytest.raises(ConfigError, match="The index has its embeddings"):
        FaissRetriever(embeddings=Letters())
    with pytest.raises(ConfigError, match="no option 'filter'"):
        retriever.invoke("a", filter={"page": 3})


def test_limits() -> None:
    retriever = FaissRetriever.from_documents(DOCUMENTS, Letters(), k=3, min_score=0.5)
    assert len(retriever.invoke("a")) == 2
    assert len(retriever.invoke("a", k=None, min_score=None)) == 3  # no limit of this call
    assert len(FaissRetriever.from_documents(DOCUMENTS, Letters()).invoke("a")) == 4


def test_a_folder_is_loaded_split_and_kept(tmp_path: Path) -> None:
    folder, index = tmp_path / "texts", tmp_path / "index"
    folder.mkdir()
    (folder / "a.md").write_text("# Letters\n\naaa\n")
    embeddings = DeterministicFakeEmbedding(size=8)
    for _ in range(2):
        [found] = FaissRetriever.from_folder(folder, index, embeddings=embeddings).invoke("a")
        assert found.page_content == "aaa"
        assert (found.metadata["title"], found.metadata["source"]) == ("Letters", "a.md")
    with pytest.raises(FileFormatError):
        FaissRetriever.from_folder(folder, index, embeddings=Letters())


def test_documents_are_added_deleted_and_saved(tmp_path: Path) -> None:
    retriever = FaissRetriever.from_documents(DOCUMENTS, Letters())
    added = [Document("g", id="first"), Document("g g f")]
    first, second = retriever.add_documents(added)  # the first one replaces another
    assert first == "first"
    assert [it.id for it in retriever.invoke("g", k=2)] == [first, second]
    retriever.delete([second, "unknown"])
    retriever.save(tmp_path / "index")
    loaded = FaissRetriever.load(tmp_path / "index", Letters(), k=4)
    assert loaded.invoke("g") == retriever.invoke("g")
    assert [it.page_content for it in loaded.invoke("g")] == ["g", "a a a b", "b", "r"]
    with pytest.raises(FileFormatError, match="made with the embedder Letters"):
        FaissRetriever.load(tmp_path / "index", DeterministicFakeEmbedding(size=8))


def test_what_cannot_be_meant_is_refused() -> None:
    retriever: Any = FaissRetriever.from_documents(DOCUMENTS, Letters())
    with pytest.raises(ConfigError, match=r"got dict.*itemgetter"):
        retriever.invoke({"input": "a"})
    for told, settings in {
        "at least 1, got 0": {"k": 0},
        "k is given twice, once as top_k": {"k": 1, "top_k": 3},
        "search_kwargs must be a dictionary": {"search_kwargs": 3},
        "finite number or None, got nan": {"score_threshold": math.nan},
    }.items():
        with pytest.raises(ConfigError, match=told):
            retriever.invoke("a", **settings)
