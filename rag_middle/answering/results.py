"""What a question gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rag_middle.documents import ContextPrompt, Document
from rag_middle.generation.results import FinishReason, Generation, Timings, Usage

__all__ = ["Answer", "AnswerTimings", "Source"]

_PLACES = ("start", "end", "page", "line")  # where in its file a chunk stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document that was found for a question.

    Attributes:
        document: as it was found.
        position: 0-based place in the prompt as sent; None: left out because it did not fit.
        cited: whether the answer names the document's title, in parentheses or before a colon.
            Chunks of one title are cited together. It does not say that the answer is true to the
            document.
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
        path = self.document.metadata.get("source")
        return path if isinstance(path, str) else None

    @property
    def score(self) -> float | None:
        """Cosine of question and document; None for documents that were not searched for."""
        score = self.document.metadata.get("score")
        return float(score) if isinstance(score, int | float) else None

    @property
    def place(self) -> Mapping[str, int]:
        """Where it stands in its file, as far as that is known.

        ``start`` and ``end`` in characters, ``page`` of a PDF and ``line`` of a ``.jsonl`` file
        from 1.
        """
        metadata = self.document.metadata
        return {name: metadata[name] for name in _PLACES if type(metadata.get(name)) is int}

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "id": self.document.id,
            "title": self.title,
            "path": self.path,
            **self.place,
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

    @property
    def total(self) -> float:
        """Everything."""
        return self.time_to_first_token + self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, where it comes from, and how it came about.

    Attributes:
        question: as it was asked.
        sources: all documents that were found, best first, those that did not fit included.
        prompt: as sent, before the chat template: documents in the order the model read them.
        generation: what the model gave back.
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
        return {
            "question": self.question,
            "text": self.text,
            "sources": [source.to_dict() for source in self.sources],
            "dropped": [index for index, each in enumerate(self.sources) if each.position is None],
            "method": self.method,
            "applied": self.applied,
            "finish_reason": self.finish_reason,
            "seed": self.generation.seed,
            "usage": {**asdict(self.usage), "total_tokens": self.usage.total_tokens},
            "timings": {
                **asdict(self.timings),
                "time_to_first_token": self.timings.time_to_first_token,
                "total": self.timings.total,
            },
            "tokens_per_second": self.generation.tokens_per_second,
        }
