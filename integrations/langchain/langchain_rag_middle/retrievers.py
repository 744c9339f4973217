"""Documents by meaning: embeddings of rag-middle, and a retriever on its index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import run_in_executor
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from rag_middle import ConfigError
from rag_middle import Document as PromptDocument
from rag_middle.integration import unknown_option

if TYPE_CHECKING:
    from rag_middle.retrieval import Embedder


class FaissRetriever(BaseRetriever):
    """Finds documents by meaning, best first, with the cosine as ``metadata["score"]``.

    ::

        retriever = FaissRetriever.from_documents(documents, k=10)
        retriever = FaissRetriever.from_folder("docs/", index_folder="docs-index")

    A higher score is better, which is what reordering and ``on_overflow="drop_documents"`` take for
    granted. Needs ``pip install 'langchain-rag-middle[faiss]'``.

    Attributes:
        index: a `rag_middle.retrieval.FaissIndex`.
        k: documents to return; fewer come where the index holds fewer.
        min_score: documents below this cosine are left out; None keeps all. Names of other
            retrievers work too: ``search_kwargs={"k": 2}``, ``top_k``, ``similarity_top_k``,
            ``score_threshold``, ``similarity_cutoff``.

    Raises:
        ConfigError: ``k`` is below 1, a setting does not exist, is given twice or is no number; or
            a question is empty.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any = Field(repr=False)
    k: int = 20
    min_score: float | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**_settings(settings, type(self).model_fields))

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        embeddings: Embeddings | None = None,
        **settings: Any,
    ) -> Self:
        """Index LangChain documents as they are; split long ones before.

        Args:
            documents: as for `add_documents`.
            embeddings: LangChain's; by default a small model that needs no network.
            settings: of the retriever.

        Raises:
            ConfigError: as in `add_documents`, or the embeddings cannot be had.
        """
        from rag_middle.retrieval import FaissIndex

        retriever = cls(index=FaissIndex(_embedder(embeddings)), **settings)
        retriever.add_documents(documents)
        return retriever

    @classmethod
    def from_folder(
        cls,
        documents: str | Path,
        index_folder: str | Path | None = None,
        *,
        embeddings: Embeddings | None = None,
        **settings: Any,
    ) -> Self:
        """Load, split and index a file or a folder, or bring its saved index up to date.

        Args:
            documents: text, PDF, HTML, Word and others; see `rag_middle.retrieval.load`.
            index_folder: where the index is kept; without one it is in memory only.
            embeddings: LangChain's; by default a small model that needs no network.
            settings: of the retriever.

        Raises:
            RagMiddleError: as `rag_middle.retrieval.build_index` does.
        """
        from rag_middle.retrieval import build_index

        built = build_index(documents, index_folder, embedder=_embedder(embeddings))
        return cls(index=built.index, **settings)

    @classmethod
    def load(
        cls, index_folder: str | Path, embeddings: Embeddings | None = None, **settings: Any
    ) -> Self:
        """What `save`, `from_folder` or ``rag-middle index`` saved; arguments as above.

        Raises:
            FileFormatError: there is no index, or it is damaged or of other embeddings.
        """
        from rag_middle.retrieval import FaissIndex

        return cls(index=FaissIndex.load(index_folder, _embedder(embeddings)), **settings)

    def save(self, index_folder: str | Path) -> None:
        """Save the index in a folder of its own, in place of the one that is there.

        Raises:
            RagMiddleError: as `rag_middle.retrieval.FaissIndex.save` does.
        """
        self.index.save(index_folder)

    def add_documents(self, documents: Iterable[Document]) -> list[str]:
        """Add documents; one whose id is here already replaces it.

        Returns:
            Their ids, in order. Documents without one are given one by their content: those that
            are equal in everything are indexed once.

        Raises:
            ConfigError: different documents have the same id, or a text has no embedding.
        """
        ids: list[str] = self.index.add(
            PromptDocument(it.page_content, id=it.id, metadata=it.metadata) for it in documents
        )
        return ids

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents by their ids; unknown ones are passed over."""
        self.index.delete(ids)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        **settings: Any,
    ) -> list[Document]:
        settings = _settings(settings, ("k", "min_score"))
        question: object = query
        if not isinstance(question, str):
            raise ConfigError(
                f"A question is a string, got {type(question).__name__}. In an expression over a "
                'dictionary, take it out first: itemgetter("input") | retriever.'
            )
        least = settings.get("min_score", self.min_score)
        return [
            _document(document)
            for document in self.index.search(query, settings.get("k", self.k))
            if least is None or document.metadata["score"] >= least
        ]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        **settings: Any,
    ) -> list[Document]:
        manager = run_manager.get_sync()
        find = partial(self._get_relevant_documents, run_manager=manager, **settings)
        return await run_in_executor(None, find, query)


#: What other retrievers call the settings.
_NAMES = {
    "top_k": "k",
    "similarity_top_k": "k",
    "score_threshold": "min_score",
    "similarity_cutoff": "min_score",
}


def _settings(arguments: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Settings under the names of `FaissRetriever`, those of ``search_kwargs`` among them."""
    arguments = {**arguments}
    of_search = arguments.pop("search_kwargs", None) or {}
    if not isinstance(of_search, Mapping):
        raise ConfigError(
            f'search_kwargs must be a dictionary such as {{"k": 2}}, got {of_search!r}.'
        )
    settings: dict[str, Any] = {}
    for other_name, value in (*of_search.items(), *arguments.items()):
        name: str = _NAMES.get(other_name) or other_name
        if value is None and name != "min_score":  # of which None means: keep all
            continue
        if name in settings:
            raise ConfigError(f"{name} is given twice, once as {other_name}: pass one of them.")
        settings[name] = value
        if name == "embeddings":
            raise ConfigError(
                "The index has its embeddings: pass them to FaissRetriever.load, from_documents or "
                "from_folder."
            )
        if name not in names:
            raise ConfigError(str(unknown_option(name, (*names, "embeddings"))))
    k, least = settings.get("k", 1), settings.get("min_score")
    if not isinstance(k, Integral) or k < 1:
        raise ConfigError(f"k must be a whole number and at least 1, got {k!r}.")
    if least is not None and not (isinstance(least, Real) and isfinite(least)):
        raise ConfigError(f"min_score must be a finite number or None, got {least!r}.")
    return settings


def _document(document: PromptDocument) -> Document:
    """For LangChain: the title is metadata there, and always present for templates to name."""
    metadata: Mapping[str, Any] = document.metadata
    title = document.title or metadata.get("title") or ""
    return Document(document.text, id=document.id, metadata={**metadata, "title": title})


def _embedder(embeddings: Embeddings | None) -> Embedder:
    if isinstance(embeddings, RagMiddleEmbeddings):
        return embeddings.embedder
    return _default_embedder() if embeddings is None else _Embedder(embeddings)


@cache
def _default_embedder() -> Embedder:
    """One for all retrievers, whose weights are loaded once."""
    from rag_middle.retrieval import SentenceTransformerEmbedder

    return SentenceTransformerEmbedder()


class _Embedder:
    """LangChain's embeddings as an embedder of rag-middle."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings
        model = getattr(embeddings, "model_name", None) or getattr(embeddings, "model", None)
        self.name = ":".join(filter(None, [type(embeddings).__name__, str(model or "")]))

    @cached_property
    def dimension(self) -> int:
        return len(self._embeddings.embed_query("dimension"))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.asarray(self._embeddings.embed_documents(list(texts)), dtype=np.float32)

    def embed_query(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.asarray([self._embeddings.embed_query(text) for text in texts], np.float32)


class RagMiddleEmbeddings(Embeddings):
    """The embedders of `rag_middle.retrieval`, for any vector store of LangChain.

    ::

        InMemoryVectorStore.from_texts(texts, RagMiddleEmbeddings())

    Vectors have length 1, so that the inner product of two is their cosine similarity. LangChain
    runs the asynchronous calls in a thread.

    Args:
        embedder: turns texts into vectors; by default `SentenceTransformerEmbedder`, whose weights
            come with the extra ``faiss``.

    Raises:
        MissingExtraError: the extra is not installed.
        ConfigError: the embedder cannot be found.
    """

    def __init__(self, embedder: Embedder | None = None) -> None:
        self.embedder = _default_embedder() if embedder is None else embedder

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.embedder.dimension

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text, in order."""
        if not texts:
            return []
        vectors: Any = self.embedder.embed(texts)
        return [list(map(float, vector)) for vector in vectors]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question, which some models embed in another way than documents."""
        embed: Any = getattr(self.embedder, "embed_query", self.embedder.embed)
        return [float(number) for number in embed([text])[0]]
