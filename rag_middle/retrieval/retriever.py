"""Documents for a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rag_middle.documents import Document
from rag_middle.errors import ConfigError
from rag_middle.plain_data import is_whole

if TYPE_CHECKING:
    from rag_middle.retrieval.faiss_index import FaissIndex


def check_question(question: object) -> None:
    """Raise `ConfigError` unless `question` asks something."""
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"The question is empty: ask something; got {question!r}.")


def check_top_k(top_k: object) -> None:
    """Raise `ConfigError` unless `top_k` is a number of documents."""
    if not is_whole(top_k, 1):
        raise ConfigError(f"top_k must be a whole number of documents, at least 1, got {top_k!r}.")


@dataclass(frozen=True, kw_only=True)
class Retriever:
    """Finds the documents that a prompt needs.

    Attributes:
        index: where to look.
        top_k: documents to return; fewer come where the index holds fewer.
        min_score: documents below this cosine are left out; None keeps all.

    Example:
        >>> documents = Retriever(index=index, top_k=10)("Who founded the town?")
        >>> prompt = ContextPrompt(documents=documents, suffix="Question: Who founded the town?")
    """

    index: FaissIndex
    top_k: int = 20
    min_score: float | None = None

    def __post_init__(self) -> None:
        check_top_k(self.top_k)

    def __call__(self, question: str, *, top_k: int | None = None) -> list[Document]:
        """The best documents, best first.

        Each has its chunk's id, and in its metadata ``score``, ``source``, ``start`` and ``end``
        (characters of the source) beside what the file says.

        Raises:
            ConfigError: the question is empty, or `top_k` is below 1.
        """
        hits = self.index.search(question, self.top_k if top_k is None else top_k)
        return [
            chunk.document(score)
            for chunk, score in hits
            if self.min_score is None or score >= self.min_score
        ]
