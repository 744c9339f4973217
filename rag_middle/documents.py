"""Documents, prompts made of them, and the text markers that carry them through plain strings.

A framework hands a model one string; the documents in it are found again by markers around each::

    [[rm:doc]]Paris is the capital of France.[[/rm:doc]]

    [[rm:doc]]Lyon lies on the Rhône.[[/rm:doc]]

    Question: ...

The markers are printable ASCII without whitespace, quotes, braces or ``<>&``, so that template
engines, chat histories, caches and traces leave them alone. :func:`mark` escapes look-alikes inside
a document, so no retrieved text can open or close a document itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, NamedTuple

from rag_middle.errors import MarkerError, PromptError

__all__ = [
    "CLOSE_MARKER",
    "OPEN_MARKER",
    "ContextPrompt",
    "Document",
    "escape",
    "has_markers",
    "mark",
    "parse",
    "unescape",
    "unmark",
]

OPEN_MARKER = "[[rm:doc]]"
CLOSE_MARKER = "[[/rm:doc]]"

# Neither marker ends in what either begins with, so a marker next to any text ("[", "[[/rm:doc") is
# found where it was put: no occurrence can reach across the edge of another.
_MARKER = re.compile(r"\[\[/?rm:doc\]\]")
_LOOK_ALIKE = re.compile(r"\[\[(~*/?rm:doc\]\])")
_ESCAPED = re.compile(r"\[\[~(~*/?rm:doc\]\])")
_BLANK_LINES = re.compile(r"(?:\s*\n)?")
_EXCERPT_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class Document:
    """One retrieved text.

    Attributes:
        text: what the model reads.
        title: written on a line of its own before the text.
        id: the caller's name for it; never shown to the model.
        metadata: the caller's own data; never shown to the model.
    """

    text: str
    title: str | None = None
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        text: object = self.text
        if not isinstance(text, str):
            raise PromptError(
                f"A document's text must be a string, got {type(text).__name__}. Pass "
                "Document(text=..., title=...)."
            )

    def render(self) -> str:
        """The text as the model reads it: the title, if any, on a line before it.

        No rank is written ("Document [3]"): a document's tokens must not depend on its place.
        """
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True, init=False)
class ContextPrompt:
    """A prompt: text, then documents, then text.

    Attributes:
        prefix: text before the documents (instructions).
        documents: in the order in which the model reads them.
        suffix: text after the documents (the question).
        separator: written after every document, the last one included, so that a document reads
            the same wherever it stands.

    Raises:
        PromptError: `documents` is one string, or holds something else than documents and strings.
    """

    prefix: str
    documents: tuple[Document, ...]
    suffix: str
    separator: str

    def __init__(
        self,
        prefix: str = "",
        documents: Iterable[Document | str] = (),
        suffix: str = "",
        separator: str = "\n\n",
    ) -> None:
        if isinstance(documents, str):
            raise PromptError("documents must be a list of documents, got a single string.")
        as_documents = tuple(_as_document(d, index) for index, d in enumerate(documents))
        object.__setattr__(self, "prefix", prefix)
        object.__setattr__(self, "documents", as_documents)
        object.__setattr__(self, "suffix", suffix)
        object.__setattr__(self, "separator", separator)

    @property
    def text(self) -> str:
        """The prompt as plain text."""
        shown = "".join(document.render() + self.separator for document in self.documents)
        return self.prefix + shown + self.suffix

    @property
    def marked(self) -> str:
        """The prompt as text with markers, from which :func:`parse` finds the documents again.

        Titles become part of the text; ids and metadata do not travel. The separator must be
        whitespace for the text to be parsed again.
        """
        shown = "".join(mark(document) + self.separator for document in self.documents)
        return escape(self.prefix) + shown + escape(self.suffix)

    @property
    def scores(self) -> tuple[float, ...] | None:
        """How relevant each document is: ``metadata["score"]``, higher is better.

        ``None`` unless every document has one that is a finite number.
        """
        given = [document.metadata.get("score") for document in self.documents]
        numbers = tuple(
            float(score)
            for score in given
            if isinstance(score, int | float) and not isinstance(score, bool) and isfinite(score)
        )
        return numbers if given and len(numbers) == len(given) else None

    def with_documents(self, documents: Iterable[Document | str]) -> ContextPrompt:
        """The same prompt about other documents."""
        return ContextPrompt(self.prefix, documents, self.suffix, self.separator)

    def permuted(self, order: Sequence[int]) -> ContextPrompt:
        """The same prompt with document ``order[i]`` at place ``i``.

        Raises:
            PromptError: ``order`` does not name every document once.
        """
        if sorted(order) != list(range(len(self.documents))):
            raise PromptError(
                f"order must name each of the {len(self.documents)} documents once, 0-based, "
                f"got {list(order)}."
            )
        return self.with_documents(self.documents[index] for index in order)


def _as_document(given: object, index: int | None = None) -> Document:
    if isinstance(given, str):
        return Document(given)
    if not isinstance(given, Document):
        raise PromptError(
            f"{'A document' if index is None else f'Document {index}'} must be a Document or a "
            f"string, got {type(given).__name__}. Wrap its text: Document(text, title=..., id=...)."
        )
    return given


def escape(text: str) -> str:
    """Make markers inside ``text`` harmless: ``[[rm:doc]]`` becomes ``[[~rm:doc]]``.

    What already looks escaped gains one more ``~``, so :func:`unescape` gives back the exact text.
    """
    return _LOOK_ALIKE.sub(r"[[~\1", text)


def unescape(text: str) -> str:
    """Undo :func:`escape`."""
    return _ESCAPED.sub(r"[[\1", text)


def mark(document: Document | str) -> str:
    """The document as it reads, escaped, between an opening and a closing marker.

    Raises:
        PromptError: neither a document nor a string.
    """
    return OPEN_MARKER + escape(_as_document(document).render()) + CLOSE_MARKER


def has_markers(text: str) -> bool:
    """Whether ``text`` holds an opening or a closing marker."""
    return _MARKER.search(text) is not None


def unmark(text: str) -> str:
    """``text`` with its documents as plain text: markers removed, look-alikes unescaped.

    Raises:
        MarkerError: markers are unbalanced, nested or stray.
    """
    _marked_spans(text)
    return "".join(map(unescape, _MARKER.split(text)))


def parse(text: str, *, groups: Literal["single", "last"] = "single") -> ContextPrompt:
    """Find the documents in a text with markers.

    All documents must stand together, with nothing but whitespace between them. That whitespace
    is the prompt's separator: the most common gap, the first one on ties. It is written after
    every document, so it is taken off the start of the suffix where it stands there; where the
    suffix starts otherwise, the last document gains a separator. With a single document the
    separator is whatever blank lines follow it.

    Escaped look-alikes are unescaped everywhere, before and after the documents too. A text
    without markers has no documents and is all suffix.

    Args:
        text: the marked text.
        groups: ``"single"`` refuses documents with other text between them; ``"last"`` takes the
            last documents that stand together and leaves earlier ones in the prefix as plain text
            (earlier turns of a conversation).

    Raises:
        MarkerError: markers are unbalanced, nested or stray, or the documents do not stand
            together.
    """
    spans = _marked_spans(text)
    if not spans:
        return ContextPrompt(suffix=unescape(text))
    first = _start_of_last_group(text, spans)
    if first and groups == "single":
        raise _text_between(text, spans[first - 1].end, spans[first].start)
    before, group, suffix = text[: spans[first].start], spans[first:], text[spans[-1].end :]
    separator = _separator(text, group, suffix)
    return ContextPrompt(
        prefix=unmark(before),
        documents=[unescape(text[span.text_start : span.text_end]) for span in group],
        suffix=unescape(suffix.removeprefix(separator)),
        separator=separator,
    )


class _Span(NamedTuple):
    """Character offsets of one marked document; ``start`` and ``end`` include the markers."""

    start: int
    text_start: int
    text_end: int
    end: int


def _marked_spans(text: str) -> list[_Span]:
    spans: list[_Span] = []
    opened: re.Match[str] | None = None
    for found in _MARKER.finditer(text):
        is_opening = found.group() == OPEN_MARKER
        if opened is None and is_opening:
            opened = found
        elif opened is not None and not is_opening:
            spans.append(_Span(opened.start(), opened.end(), found.start(), found.end()))
            opened = None
        elif opened is not None:
            raise _marker_error(
                f"A document opens inside the one opened at character {opened.start()}. "
                f"Close that one with {CLOSE_MARKER}, or wrap documents with mark(), which "
                "escapes markers in their text",
                text,
                found.start(),
            )
        else:
            raise _marker_error(
                f"{CLOSE_MARKER} closes a document that was never opened. Remove it, or wrap "
                "documents with mark(), which escapes markers in their text",
                text,
                found.start(),
            )
    if opened is not None:
        raise _marker_error(
            f"A document is opened and never closed. Add {CLOSE_MARKER} after it, and check that "
            "nothing cut the text short",
            text,
            opened.start(),
        )
    return spans


def _start_of_last_group(text: str, spans: Sequence[_Span]) -> int:
    """Index of the first of the last documents with only whitespace between them."""
    for index in range(len(spans) - 1, 0, -1):
        if text[spans[index - 1].end : spans[index].start].strip():
            return index
    return 0


def _separator(text: str, group: Sequence[_Span], suffix: str) -> str:
    gaps = [text[a.end : b.start] for a, b in pairwise(group)]
    if gaps:
        return Counter(gaps).most_common(1)[0][0]
    found = _BLANK_LINES.match(suffix)
    return found.group() if found else ""


def _text_between(text: str, start: int, end: int) -> MarkerError:
    gap = text[start:end]
    shown = gap.strip()
    return _marker_error(
        f"Documents must stand together, but {_shortened(shown)!r} stands between two of them. "
        "Move it into a document, or before or after all of them. Where it separates documents (a "
        "chain's document_separator), let whitespace do that. To use only the last documents that "
        "stand together (earlier turns of a conversation), call parse(text, groups='last')",
        text,
        start + gap.index(shown[0]),
    )


def _shortened(text: str, characters: int = 2 * _EXCERPT_CHARACTERS) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."


def _marker_error(message: str, text: str, position: int) -> MarkerError:
    start = max(0, position - _EXCERPT_CHARACTERS)
    excerpt = text[start : position + _EXCERPT_CHARACTERS]
    return MarkerError(message, position=position, excerpt=excerpt)
