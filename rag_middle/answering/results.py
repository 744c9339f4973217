"""Answers, their sources, and what of these they cite."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from rag_middle.documents import ContextPrompt, Document
from rag_middle.generation import Generation
from rag_middle.generation.results import FinishReason, Timings, Usage
from rag_middle.wording import shortened

_LOCATION_FIELDS = ("start", "end", "page", "line", "first_line", "last_line")
_SNIPPET = 90  # characters


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
        path = self.document.metadata.get("source")
        return path if isinstance(path, str) else None

    @property
    def score(self) -> float | None:
        """Cosine of question and document; None for documents that were not searched for."""
        score = self.document.metadata.get("score")
        return float(score) if isinstance(score, int | float) else None

    @property
    def place(self) -> Mapping[str, int]:
        """Its location in its file, as far as that is known.

        ``start`` and ``end`` in characters; from 1: ``page`` of a PDF, ``line`` of a ``.jsonl``
        file, ``first_line`` and ``last_line`` of a text.
        """
        metadata = self.document.metadata
        return {
            name: metadata[name] for name in _LOCATION_FIELDS if type(metadata.get(name)) is int
        }

    @property
    def heading(self) -> str | None:
        """The heading that it stands under in its file, where that has headings."""
        heading = self.document.metadata.get("heading")
        return heading if isinstance(heading, str) else None

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

    @property
    def total(self) -> float:
        """Everything."""
        return self.time_to_first_token + self.decode


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
        return {
            "question": self.question,
            "text": self.text,
            "sources": [source.to_dict() for source in self.sources],
            "dropped": [i for i, source in enumerate(self.sources) if source.position is None],
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


_SIGNS = "[\"'`*_“”„‘’‚«»「」『』《》]*"  # quotes and emphasis around a title


def mentions(answer: str, title: str | None) -> list[tuple[int, int]]:
    """Where an answer cites a title: ``(Lyon) On the Rhône.`` or ``Lyon: on the Rhône.``

    In parentheses anywhere, several titles separated by semicolons; before a colon at the start of
    a line. Case, kind of whitespace, the width of signs (``（长江）``), quotes or emphasis around a
    title (``(**Lyon**)``, ``**Lyon:**``) and the form of accents make no difference.

    Returns:
        Start and end in characters, in order.
    """
    name = "".join(_compared(title or "")[0]).strip()
    if not name or len(name) > 4 * len(answer):
        return []
    text, places, depths = _compared(answer)
    written = _SIGNS + "(" + r"\s".join(map(re.escape, name.split())) + ")" + _SIGNS
    in_parentheses = re.compile(rf"(?<=[(;])\s?{written}\s?(?=[);])")
    before_colon = re.compile(rf"^\s?{written}:", re.MULTILINE)
    spans = [
        match.span(1)
        for pattern in (in_parentheses, before_colon)
        for match in pattern.finditer(text)
        if pattern is before_colon or depths[match.start()] > 0
    ]
    return [(places[start], places[end - 1] + 1) for start, end in sorted(spans)]


@lru_cache(maxsize=8)  # every document of a prompt looks for its title
def _compared(text: str) -> tuple[str, list[int], list[int]]:
    """A text without case, width and form of characters, one space or line end for several.

    Returns:
        The text; for each of its characters where it was, and how many parentheses are open there.
    """
    characters: list[str] = []
    places: list[int] = []
    depths: list[int] = []
    depth = 0
    for index, character in enumerate(text):
        for written in unicodedata.normalize("NFKD", character.casefold()):
            if written.isspace():
                written = "\n" if character in "\n\r" else " "
                if characters and characters[-1].isspace():
                    characters[-1] = max(written, characters[-1], key=" \n".index)
                    continue
            characters.append(written)
            places.append(index)
            depths.append(depth)
            depth += (written == "(") - (written == ")")
    return "".join(characters), places, depths
