"""Answers, their sources, and what of these they cite."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

from rag_middle.answering.template import PromptTemplate
from rag_middle.documents import ContextPrompt, Document
from rag_middle.generation import Generation, GenerationStream
from rag_middle.generation.results import FinishReason, Timings, Usage
from rag_middle.wording import shortened

_LOCATION_FIELDS = ("start", "end", "page", "line", "first_line", "last_line")
_SNIPPET = 90  # characters
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document that was retrieved for a question.

    Attributes:
        document: as it was retrieved.
        position: 0-based, in the prompt as sent; None: left out because it did not fit.
        cited: whether the answer names the document's title, in parentheses or before a colon.
            Chunks of one title are cited together. A citation does not prove that the document
            supports the answer.
    """

    document: Document
    position: int | None
    cited: bool = False

    @property
    def title(self) -> str | None:
        """The document's title."""
        return self.document.title

    @property
    def path(self) -> str | None:
        """The file it comes from, relative to the folder that was indexed."""
        return self._metadata("source", str)

    @property
    def score(self) -> float | None:
        """Cosine of question and document; None for documents that were not searched for."""
        return self._metadata("score", float)

    @property
    def heading(self) -> str | None:
        """The heading that it stands under in its file, where that has headings."""
        return self._metadata("heading", str)

    def _metadata(self, name: str, kind: type[T]) -> T | None:
        value = self.document.metadata.get(name)
        return value if isinstance(value, kind) else None

    @property
    def place(self) -> Mapping[str, int]:
        """Its location in its file, as far as that is known.

        ``start`` and ``end`` in characters; from 1: ``page`` of a PDF, ``line`` of a ``.jsonl``
        file, ``first_line`` and ``last_line`` of a text.
        """
        numbers = ((name, self._metadata(name, int)) for name in _LOCATION_FIELDS)
        return {name: number for name, number in numbers if number is not None}

    @property
    def where(self) -> str:
        """Its file and what to look for there: ``guide.md, lines 12-40``; its id without a file."""
        place = self.place
        parts = [self.path or self.document.id or ""]
        parts += [f"{name} {place[name]}" for name in ("page", "line") if name in place]
        if "first_line" in place:
            first, last = place["first_line"], place.get("last_line", place["first_line"])
            parts.append(f"line {first}" if first == last else f"lines {first}-{last}")
        return ", ".join(part for part in parts if part)

    @property
    def snippet(self) -> str:
        """The beginning of its text, in a line."""
        return shortened(" ".join(self.document.text.split()), _SNIPPET)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "id": self.document.id,
            "title": self.title,
            "path": self.path,
            **self.place,
            "heading": self.heading,
            "score": self.score,
            "position": self.position,
            "cited": self.cited,
            "text": self.document.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimings(Timings):
    """Wall-clock seconds of an answer.

    Attributes:
        retrieve: from the question to its documents.
    """

    retrieve: float

    @property
    def time_to_first_token(self) -> float:
        """From the question to the first token."""
        return self.retrieve + self.tokenize + self.wait + self.prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, where it comes from, and how it came about.

    Attributes:
        question: as it was asked.
        sources: all documents that were retrieved, best first, those that did not fit included.
        prompt: as sent, before the chat template: documents in the order the model read them.
        generation: of the model.
        timings: seconds.
    """

    question: str
    sources: tuple[Source, ...]
    prompt: ContextPrompt = field(repr=False)
    generation: Generation = field(repr=False)
    timings: AnswerTimings

    @property
    def text(self) -> str:
        """What the model wrote, without spaces around it."""
        return self.generation.text.strip()

    @property
    def cited(self) -> tuple[Source, ...]:
        """The sources that the text names."""
        return tuple(source for source in self.sources if source.cited)

    @property
    def dropped(self) -> tuple[Source, ...]:
        """The sources that were left out because the prompt did not fit."""
        return tuple(source for source in self.sources if source.position is None)

    @property
    def method(self) -> str:
        """The method that the model ran under, by the name that chooses it."""
        return self.generation.method

    @property
    def applied(self) -> bool:
        """Whether the method could act on this prompt."""
        return self.generation.applied

    @property
    def usage(self) -> Usage:
        """Token counts."""
        return self.generation.usage

    @property
    def finish_reason(self) -> FinishReason:
        """Why the text ended."""
        return self.generation.finish_reason

    def to_dict(self) -> dict[str, Any]:
        """Everything but the prompt's text as JSON-ready values."""
        same = ("method", "applied", "finish_reason", "seed", "usage", "tokens_per_second")
        generation = self.generation.to_dict()
        return {
            "question": self.question,
            "text": self.text,
            "sources": [source.to_dict() for source in self.sources],
            "dropped": [i for i, source in enumerate(self.sources) if source.position is None],
            **{name: generation[name] for name in same},
            "timings": self.timings.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A question and the documents retrieved for it.

    Attributes:
        question: as it was asked.
        documents: best first.
        template: of the prompt.
        seconds: that retrieval took.
        history: earlier questions and their answers, oldest first.
    """

    question: str
    documents: tuple[Document, ...]
    template: PromptTemplate
    seconds: float
    history: Sequence[tuple[str, str]] = ()

    @property
    def prompt(self) -> ContextPrompt:
        """The prompt to send, with each document's index in `documents` as its id.

        This identifies it wherever a method moves it, even where two have the same id or none.
        """
        return self.template.prompt(
            self.question,
            (replace(document, id=str(i)) for i, document in enumerate(self.documents)),
            self.history,
        )

    def sent(self, ids: Sequence[str | None]) -> ContextPrompt:
        """The prompt as it was sent, with these `ids`; its documents under their own."""
        whole = self.template.prompt(self.question, self.documents, self.history)
        return whole.with_documents(whole.documents[index] for index in _indices(ids))

    def sources(self, ids: Sequence[str | None], answer: str = "") -> tuple[Source, ...]:
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


def _indices(ids: Sequence[str | None]) -> list[int]:
    return [int(id_) for id_ in ids if id_ is not None]


#: And emphasis, around a title. Few: a title may consist of them, and a longer run could be split
#: between both in as many ways as it has signs.
_QUOTES = "[\"'`*_“”„‘’‚«»「」『』《》]{0,3}"


def mentions(answer: str, title: str | None) -> list[tuple[int, int]]:
    """Where an answer cites a title: ``(Lyon) On the Rhône.`` or ``Lyon: on the Rhône.``

    In parentheses anywhere, several titles separated by semicolons; before a colon at the start of
    a line. Case, whitespace between words, full-width signs (``（长江）``), quotes or emphasis
    around a title (``(**Lyon**)``, ``**Lyon:**``) and the form of accents make no difference.

    Returns:
        Start and end in characters, in order.
    """
    title = (title or "").strip()
    if not title or len(title) > 4 * len(answer):
        return []
    forms = {title, *(unicodedata.normalize(form, title) for form in ("NFC", "NFD", "NFKC"))}
    written = "|".join(r"\s+".join(map(re.escape, form.split())) for form in sorted(forms))
    name = f"{_QUOTES}({written}){_QUOTES}"
    cited = re.compile(
        rf"(?<=[(（;；])\s{{0,2}}{name}\s?(?=[)）;；])|^[ \t]{{0,2}}{name}[:：]",
        re.IGNORECASE | re.MULTILINE,
    )
    steps = ((sign in "(（") - (sign in ")）") for sign in answer)
    depths = [*accumulate(steps, initial=0)]  # open parentheses before each character
    return [
        match.span(match.lastindex or 0)
        for match in cited.finditer(answer)
        if match.lastindex == 2 or depths[match.start()] > 0
    ]
