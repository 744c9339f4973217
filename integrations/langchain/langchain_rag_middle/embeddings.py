"""Embeddings of length 1 for LangChain, by default without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

if TYPE_CHECKING:
    from rag_middle.retrieval import Embedder

__all__ = ["RagMiddleEmbeddings"]


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
        EmbedderError: the embedder cannot be found.
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

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text, in order."""
        if not texts:
            return []
        vectors: Any = self._embedder.embed(texts)
        return [list(map(float, vector)) for vector in vectors]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question: as of a document."""
        return self.embed_documents([text])[0]
