"""The usual remedy against lost-in-the-middle, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document

from rag_middle import PromptError

__all__ = ["LongContextReorder"]


class LongContextReorder(BaseDocumentTransformer):
    """Puts the best documents at both ends and the worst into the middle.

    Of documents 1 (best) to 6 the model reads 1, 3, 5, 6, 4, 2. It changes what stands where, and
    not how the model reads: the baseline that a method has to beat. Methods that do not depend on
    the order (PINE) gain nothing from it.

    Args:
        score_key: metadata that says how good a document is, higher is better; documents are
            sorted by it first. By default they come best first, as retrievers return them.

    """

    def __init__(self, *, score_key: str | None = None) -> None:
        self.score_key = score_key

    def transform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """The same documents in another order.

        Raises:
            PromptError: a document has no such score.
        """
        best_first = list(documents)
        if self.score_key is not None:
            best_first.sort(key=self._score, reverse=True)
        return best_first[0::2] + best_first[1::2][::-1]

    def _score(self, document: Document) -> float:
        score = document.metadata.get(self.score_key)
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise PromptError(
                f"A document has no number in metadata[{self.score_key!r}], got {score!r}. Leave "
                "score_key out if the documents come best first."
            )
        return score
