"""A question with its documents: the prompt to send, and the answer, whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from rag_middle.answering.results import Answer, AnswerTimings, Source, mentions
from rag_middle.answering.template import PromptTemplate
from rag_middle.documents import ContextPrompt, Document
from rag_middle.generation import Generation, GenerationStream

SentIds = Sequence[str | None]
"""Of the documents in a prompt as sent: indices of `AnswerRequest.documents`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A question and the documents retrieved for it.

    Attributes:
        question: as it was asked.
        documents: best first.
        template: of the prompt.
        seconds: that retrieval took.
    """

    question: str
    documents: tuple[Document, ...]
    template: PromptTemplate
    seconds: float

    @property
    def prompt(self) -> ContextPrompt:
        """The prompt to send, with each document's index in `documents` as its id.

        This identifies it wherever a method moves it, even where two have the same id or none.
        """
        return self.template.prompt(
            self.question,
            (replace(document, id=str(i)) for i, document in enumerate(self.documents)),
        )

    def sent(self, ids: SentIds) -> ContextPrompt:
        """The prompt as it was sent, its documents under their own ids."""
        whole = self.template.prompt(self.question, self.documents)
        return whole.with_documents(whole.documents[index] for index in _indices(ids))

    def sources(self, ids: SentIds, answer: str = "") -> tuple[Source, ...]:
        """The documents, their positions in the prompt, and whether `answer` cites them."""
        positions = {index: position for position, index in enumerate(_indices(ids))}
        return tuple(
            Source(
                document=document,
                position=positions.get(index),
                cited=index in positions and bool(mentions(answer, document.title)),
            )
            for index, document in enumerate(self.documents)
        )

    def answer(self, generation: Generation) -> Answer:
        """The answer that a generation gives."""
        ids = generation.document_ids
        return Answer(
            question=self.question,
            sources=self.sources(ids, generation.text),
            prompt=self.sent(ids),
            generation=generation,
            timings=AnswerTimings(retrieve=self.seconds, **asdict(generation.timings)),
        )


class AnswerStream(Iterator[str]):
    """Pieces of an answer's text as they come; `result` afterwards.

    ::

        with answerer.stream("On which river does Nantes lie?") as pieces:
            for piece in pieces:
                print(piece, end="", flush=True)
        print(pieces.result.cited)

    Leaving the ``with`` block, `close`, or dropping the stream ends the generation after the
    current decode step; `result` is then the answer up to there.

    Attributes:
        sources: the retrieved documents; nothing is cited yet.
        prompt: as in `Answer`.
    """

    def __init__(self, request: AnswerRequest, pieces: GenerationStream) -> None:
        self.sources = request.sources(pieces.document_ids)
        self.prompt = request.sent(pieces.document_ids)
        self._request = request
        self._pieces = pieces

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def result(self) -> Answer:
        """The whole answer; waits for its end. Unread pieces are skipped."""
        return self._request.answer(self._pieces.result)

    def close(self) -> None:
        """End the generation after the current decode step. Any thread may call."""
        self._pieces.close()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _indices(ids: SentIds) -> list[int]:
    return [int(id_) for id_ in ids if id_ is not None]
