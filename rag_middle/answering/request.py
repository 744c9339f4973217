"""One question on its way: what was found, what of it is sent, what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rag_middle.answering.citations import cites
from rag_middle.answering.results import Answer, AnswerTimings, Source
from rag_middle.answering.template import PromptTemplate
from rag_middle.documents import ContextPrompt, Document
from rag_middle.generation import Generation

__all__ = ["Request"]

Sent = Sequence[str | None]
"""Ids of the documents in a prompt as it was sent: their places among those found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A question and the documents found for it.

    Attributes:
        question: as it was asked.
        documents: best first.
        template: how they are written.
        seconds: spent on finding them.
    """

    question: str
    documents: tuple[Document, ...]
    template: PromptTemplate
    seconds: float

    @property
    def prompt(self) -> ContextPrompt:
        """The prompt to send: each document has its place among those found for an id.

        So it is known again wherever a method puts it, also where two have the same id or none.
        """
        return self.template.prompt(
            self.question,
            (replace(document, id=str(at)) for at, document in enumerate(self.documents)),
        )

    def sent(self, ids: Sent) -> ContextPrompt:
        """The prompt as it was sent, its documents under their own ids."""
        whole = self.template.prompt(self.question, self.documents)
        return whole.with_documents(whole.documents[place] for place in _places(ids))

    def sources(self, ids: Sent, answer: str = "") -> tuple[Source, ...]:
        """The documents, where they stood in the prompt, and whether `answer` names them."""
        position = {place: at for at, place in enumerate(_places(ids))}
        return tuple(
            Source(
                document=document,
                position=position.get(place),
                cited=place in position and cites(answer, document.title),
            )
            for place, document in enumerate(self.documents)
        )

    def answer(self, generation: Generation) -> Answer:
        """The answer that a generation is."""
        ids = generation.document_ids
        return Answer(
            question=self.question,
            sources=self.sources(ids, generation.text),
            prompt=self.sent(ids),
            generation=generation,
            timings=AnswerTimings(retrieve=self.seconds, **asdict(generation.timings)),
        )


def _places(ids: Sent) -> list[int]:
    return [int(each) for each in ids if each is not None]
