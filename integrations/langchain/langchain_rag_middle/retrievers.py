"""Documents by meaning: embeddings of rag-middle, and a retriever on its index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
from rag_middle.registry import suggest

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
        min_score: documents below this cosine are left out; None keeps all. LangChain's other
            names work too: ``search_kwargs={"k": 2}``, ``score_threshold``, ``top_k``.
        embeddings: for questions, where the index was made with LangChain's embeddings.

    Raises:
        ConfigError: ``k`` is below 1, a setting does not exist, or a question is empty.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any = Field(repr=False)
    k: int = 20
    min_score: float | None = None
    embeddings: Embeddings | None = Field(default=None, repr=False)

    def __init__(self, **given: Any) -> None:
        super().__init__(**_settings(given, type(self).model_fields))
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
            ConfigError: the embeddings cannot be had, one has no direction, or different documents
                have the same id.
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
        **settings: Any,
    ) -> list[Document]:
        settings = _settings(settings, ("k", "min_score"))
        k, least = settings.get("k", self.k), settings.get("min_score", self.min_score)
        given: object = query
        if not isinstance(given, str):
            raise ConfigError(
                f"A question is a string, got {type(given).__name__}. In an expression over a "
                'dictionary, take it out first: itemgetter("input") | retriever.'
            )
        if self.embeddings is None or not query.strip():
            hits = self.index.search(query, k)
        else:  # questions may be embedded in another way than documents
            vector = np.asarray(self.embeddings.embed_query(query), dtype=np.float32)
            hits = self.index.search(vector, k)
        return [
            _document(chunk.document(score))
            for chunk, score in hits
            if least is None or score >= least
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
_NAMES = {"top_k": "k", "similarity_top_k": "k", "score_threshold": "min_score"}


def _settings(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Settings under the names of `FaissRetriever`, those of ``search_kwargs`` among them."""
    given = {**given}
    given = {**(given.pop("search_kwargs", None) or {}), **given}
    settings = {_NAMES.get(name, name): value for name, value in given.items()}
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"There is no setting {name!r} of FaissRetriever here.{suggest(name, known)} "
                f"Settings: {', '.join(known)}."
            )
    return {name: value for name, value in settings.items() if value is not None}


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


class _Embedder:
    """LangChain's embeddings as an embedder of rag-middle: vectors of length 1."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings
        self._dimension = len(embeddings.embed_query("dimension"))
        self._model = getattr(embeddings, "model_name", None) or getattr(embeddings, "model", None)

    @property
    def name(self) -> str:
        return ":".join(filter(None, [type(self._embeddings).__name__, str(self._model or "")]))

    @property
    def fingerprint(self) -> str | None:
        """Changes with the weights, where they can be known: an index of others is refused."""
        return getattr(self._embeddings, "fingerprint", None)

    @property
    def dimension(self) -> int:
        return self._dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, dimension]; raises `ConfigError` where a vector has no direction."""
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        vectors = np.asarray(self._embeddings.embed_documents(list(texts)), dtype=np.float32)
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
        return f"{self._embedder.name}:{getattr(self._embedder, 'fingerprint', None)}"

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
