"""Documents that do not answer a question: random ones, or those an embedder finds most alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rag_middle.documents import Document
from rag_middle.errors import EvaluationDataError
from rag_middle.evaluation.metrics import normalized

if TYPE_CHECKING:
    from rag_middle.retrieval import Embedder

__all__ = ["Distractors", "Pool"]

#: ``"random"``: any documents; ``"hard"``: those most like the question.
Distractors = Literal["random", "hard"]


class Pool:
    """Documents to draw distractors from.

    Args:
        documents: of equal texts, the first one is kept.
        kind: which to take.
        embedder: for hard ones: a folder or hub name of a sentence-transformers model; None for
            the default, which needs no network.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        kind: Distractors = "random",
        embedder: str | None = None,
    ) -> None:
        self._documents = list({document.text: document for document in documents}.values())
        self._texts = [normalized(document.render()) for document in self._documents]
        self._kind = kind
        self._embedder_name = embedder
        self._embedder: Embedder | None = None
        self._vectors: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self._documents)

    def draw(
        self,
        count: int,
        *,
        question: str,
        answers: Sequence[str],
        without: Sequence[Document],
        rng: random.Random,
    ) -> list[Document]:
        """`count` documents that hold none of the answers.

        An answer counts as held where it stands in title or text, all normalised as for scoring.

        Args:
            count: how many.
            question: that hard ones should be like.
            answers: that none may hold.
            without: documents that are there already.
            rng: of random ones, and of the order of hard ones.

        Raises:
            EvaluationDataError: there are not so many.
            MissingExtraError, EmbedderError: for hard ones, the embedder cannot be had.
        """
        if not count:
            return []
        taken = {document.text for document in without}
        wanted = [text for text in map(normalized, answers) if text]
        chosen: list[Document] = []
        for index in self._ranked(question, rng):
            document = self._documents[index]
            holds = any(text in self._texts[index] for text in wanted)
            if document.text not in taken and not holds:
                chosen.append(document)
            if len(chosen) == count:
                # The most alike must not always stand first: distractors have no places.
                rng.shuffle(chosen)
                return chosen
        raise EvaluationDataError(
            f"{count} documents are needed that do not answer {question!r}, and there are "
            f"{len(chosen)} among {len(self)}. Ask for fewer documents, or give more data."
        )

    def _ranked(self, question: str, rng: random.Random) -> list[int]:
        order = list(range(len(self)))
        if self._kind == "random":
            rng.shuffle(order)
            return order
        if self._embedder is None or self._vectors is None:
            from rag_middle.retrieval import SentenceTransformerEmbedder

            self._embedder = SentenceTransformerEmbedder(self._embedder_name)
            self._vectors = self._embedder.embed([each.render() for each in self._documents])
        alike = self._vectors @ self._embedder.embed([question])[0]
        return [int(index) for index in np.argsort(-alike, kind="stable")]
