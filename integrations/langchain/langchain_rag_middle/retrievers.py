"""Documents by meaning: embeddings of rag-middle, and a retriever on its index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
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

if TYPE_CHECKING:
    from rag_middle.retrieval import Embedder


class FaissRetriever(BaseRetriever):
    """Finds documents by meaning, best first, with the cosine as ``metadata["score"]``.

    ::

        retriever = FaissRetriever.from_documents(documents, k=10)
        retriever = FaissRetriever.from_folder("docs/", index_folder="docs-index")

    Vectors have length 1 and are compared by their inner product, so a higher score is better,
    which is what reordering and ``on_overflow="drop_documents"`` take for granted. Needs
    ``pip install 'langchain-rag-middle[faiss]'``.

    Attributes:
        index: a `rag_middle.retrieval.FaissIndex`.
        k: documents to return; fewer come where the index holds fewer.
        min_score: documents below this cosine are left out; None keeps all.
        embeddings: for questions, where the index was made with LangChain's embeddings.

    Raises:
        ConfigError: ``k`` is below 1, or a question is empty.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any = Field(repr=False)
    k: int = 20
    min_score: float | None = None
    embeddings: Embeddings | None = Field(default=None, repr=False)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.k < 1:
            raise ConfigError(f"k must be at least 1, got {self.k}.")

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        embeddings: Embeddings | None = None,
        **settings: Any,
    ) -> Self:
        """Index LangChain documents as they are; split long ones before.

        Args:
            documents: their ids are kept; documents that are equal in everything are indexed once.
            embeddings: LangChain's; by default a small model that needs no network.
            settings: of the retriever.

        Raises:
            ConfigError: the embeddings cannot be had, or are not vectors.
            ConfigError: different documents have the same id.
        """
        from rag_middle.retrieval import Chunk, FaissIndex, SentenceTransformerEmbedder

        chunks: dict[str, Chunk] = {}
        for document in documents:
            source = str(document.metadata.get("source") or "")
            chunk = Chunk(
                id=document.id or _content_id(document, source),
                text=document.page_content,
                source=source,
                end=len(document.page_content),
                metadata=document.metadata,
            )
            if chunks.setdefault(chunk.id, chunk) != chunk:  # the index would keep one of them
                raise ConfigError(
                    f"Two different documents have the id {chunk.id!r}. Give each an id of its "
                    "own, or none: parts of one document that a splitter made, for instance."
                )
        index = FaissIndex(
            SentenceTransformerEmbedder() if embeddings is None else _Embedder(embeddings)
        )
        index.add(chunks.values())
        return cls(index=index, embeddings=embeddings, **settings)

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

        embedder = None if embeddings is None else _Embedder(embeddings)
        built = build_index(documents, index_folder, embedder=embedder)
        return cls(index=built.index, embeddings=embeddings, **settings)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        given: object = query
        if not isinstance(given, str):
            raise ConfigError(
                f"A question is a string, got {type(given).__name__}. In an expression over a "
                'dictionary, take it out first: itemgetter("input") | retriever.'
            )
        if self.embeddings is None or not query.strip():
            hits = self.index.search(query, self.k if k is None else k)
        else:  # questions may be embedded in another way than documents
            vector = _numbers(self.embeddings.embed_query(query), 1)
            hits = self.index.search(vector, self.k if k is None else k)
        return [
            _document(chunk.document(score))
            for chunk, score in hits
            if self.min_score is None or score >= self.min_score
        ]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
    ) -> list[Document]:
        find = partial(self._get_relevant_documents, run_manager=run_manager.get_sync(), k=k)
        return await run_in_executor(None, find, query)


def _content_id(document: Document, source: str) -> str:
    """The same for equal documents: with other metadata, the same text is another document."""
    from rag_middle.retrieval.splitting import content_id

    metadata = sorted(document.metadata.items(), key=str)
    return f"{source}#{content_id(document.page_content, repr(metadata))}"


def _document(found: PromptDocument) -> Document:
    """For LangChain: the title is metadata there, and always present for templates to name."""
    metadata: Mapping[str, Any] = found.metadata
    title = found.title or metadata.get("title") or ""
    return Document(found.text, id=found.id, metadata={**metadata, "title": title})


def _fingerprint(embeddings: Embeddings, model: object) -> str | None:
    """What changes with the weights of LangChain's embeddings; None where that is not known."""
    from rag_middle.retrieval.embedders import fingerprint_of_name

    if isinstance(embeddings, RagMiddleEmbeddings):
        return embeddings.fingerprint
    if isinstance(model, str) and os.path.isdir(model):  # as HuggingFaceEmbeddings names one
        return fingerprint_of_name(model)
    return None


def _numbers(vectors: object, dimensions: int) -> NDArray[np.float32]:
    """Raises `ConfigError` for what is no vector (1), or no list of vectors (2)."""
    try:
        array = np.asarray(vectors, dtype=np.float32)
        if array.ndim == dimensions:
            return array
        reason = f"an array of {array.ndim} dimensions"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise ConfigError(
        f"The embeddings should return {'a list' if dimensions == 1 else 'lists'} of numbers, all "
        f"of one length, got {type(vectors).__name__} ({reason})."
    )


class _Embedder:
    """LangChain's embeddings as an embedder of rag-middle: vectors of length 1."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings
        self._dimension = len(_numbers(embeddings.embed_query("dimension"), 1))
        self._model = getattr(embeddings, "model_name", None) or getattr(embeddings, "model", None)
        self._fingerprint = _fingerprint(embeddings, self._model)

    @property
    def name(self) -> str:
        return ":".join(filter(None, [type(self._embeddings).__name__, str(self._model or "")]))

    @property
    def fingerprint(self) -> str | None:
        """Changes with the weights, where they can be known: an index of others is refused."""
        return self._fingerprint

    @property
    def dimension(self) -> int:
        return self._dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, dimension].

        Raises:
            ConfigError: these are no vectors, or one has no direction.
        """
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        vectors = _numbers(self._embeddings.embed_documents(list(texts)), 2)
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        if not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise ConfigError(
                f"{self.name} gave a vector without a direction (zero or not finite) for one of "
                f"{len(texts)} texts. Leave empty documents out, or use other embeddings."
            )
        unit: NDArray[np.float32] = vectors / lengths
        return unit


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
        if embedder is None:
            from rag_middle.retrieval import SentenceTransformerEmbedder

            embedder = SentenceTransformerEmbedder()
        self._embedder = embedder

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._embedder.dimension

    @property
    def fingerprint(self) -> str:
        """Changes with the embedder and, where it says so, with its weights."""
        from rag_middle.retrieval.embedders import fingerprint_of

        return f"{self._embedder.name}:{fingerprint_of(self._embedder)}"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text, in order."""
        if not texts:
            return []
        vectors: Any = self._embedder.embed(texts)
        return [list(map(float, vector)) for vector in vectors]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question, which some models embed in another way than documents."""
        from rag_middle.retrieval.embedders import embed_questions

        return [float(number) for number in embed_questions(self._embedder, [text])[0]]
