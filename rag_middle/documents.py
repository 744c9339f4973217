"""Documents, prompts made of them, and marked text that carries them through plain strings.

A framework hands a model one string; the documents in it are found again by markers around each::

    [[rm:doc:5d0c6b9e1f27a3848c11d2e0]]Paris is the capital of France.[[/rm:doc]]

    [[rm:doc:f96f1e6b0a94b2a02c0c1c3d]]Lyon lies on the Rhône.[[/rm:doc]]

    Question: ...

:func:`mark` makes them, and :func:`parse` reads only those that it made: whatever else looks like a
marker is text. See `rag_middle.markers`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from rag_middle.errors import MarkerError, PromptError
from rag_middle.markers import (
    MARKER_KEY_VARIABLE,
    Marked,
    literal,
    marked_parts,
    marker_error,
    seal,
    unescape,
)
from rag_middle.notices import UnreadMarkersWarning, warn_caller
from rag_middle.plain_data import is_finite_number
from rag_middle.wording import shortened

_WORD = re.compile(r"[^\W_]")
_BLANK_LINES = re.compile(r"(?:\s*\n)?")


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

        No rank is written ("Document [3]"): a document's tokens must not depend on its position.
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
        PromptError: `documents` is no list of documents and strings.
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
        if isinstance(documents, str) or not isinstance(documents, Iterable):
            raise PromptError(f"documents must be a list of documents, got {documents!r:.80}.")
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

        Whatever prefix, suffix and documents say, the text is the same again, and so are the
        documents. Titles become part of their text, and so does a separator that is not
        whitespace; ids and metadata do not travel.
        """
        if not self.documents:
            # Together: a marker may begin in one and end in the other.
            return literal(self.prefix + self.suffix)
        inside, between = "", self.separator
        if self.separator.strip():  # text between documents would part them
            inside, between = self.separator, ""
        shown = "".join(seal(document.render() + inside) + between for document in self.documents)
        return literal(self.prefix) + shown + literal(self.suffix)

    @property
    def scores(self) -> tuple[float, ...] | None:
        """How relevant each document is: ``metadata["score"]``, higher is better.

        ``None`` unless every document has one that is a finite number.
        """
        scores = [document.metadata.get("score") for document in self.documents]
        numbers = tuple(float(score) for score in scores if is_finite_number(score))
        return numbers if scores and len(numbers) == len(scores) else None

    def with_documents(self, documents: Iterable[Document | str]) -> ContextPrompt:
        """The same prompt about other documents."""
        return ContextPrompt(self.prefix, documents, self.suffix, self.separator)

    def permuted(self, order: Sequence[int]) -> ContextPrompt:
        """The same prompt with document ``order[i]`` at position ``i``.

        Raises:
            PromptError: ``order`` does not name every document once.
        """
        if sorted(order) != list(range(len(self.documents))):
            raise PromptError(
                f"order must name each of the {len(self.documents)} documents once, 0-based, "
                f"got {list(order)}."
            )
        return self.with_documents(self.documents[index] for index in order)


def check_separator(separator: str) -> None:
    """Raise `PromptError` unless documents can stand together with this between them."""
    if _WORD.search(separator):
        raise PromptError(
            f"Documents are separated by whitespace or signs, got {separator!r:.60}: put its words "
            "into them, or before or after all of them."
        )


def _as_document(document: object, index: int | None = None) -> Document:
    if isinstance(document, str):
        return Document(document)
    if not isinstance(document, Document):
        raise PromptError(
            f"{'A document' if index is None else f'Document {index}'} must be a Document or a "
            f"string, got {type(document).__name__}. Wrap its text: Document(text, title=...)."
        )
    return document


def mark(document: Document | str) -> str:
    """The document as it reads, escaped, between an opening and a closing marker.

    The same text is marked the same way every time, in one process and in all that share
    ``RAG_MIDDLE_MARKER_KEY``. Half a character (a lone surrogate) is marked as U+FFFD.

    Raises:
        PromptError: neither a document nor a string.
    """
    return seal(_as_document(document).render())


def labelled(text: str, number: int | None = None, source: str | None = None) -> str:
    """The text after ``[number]`` and ``(source)``, in brackets as answers cite them.

    Args:
        text: of a document.
        number: its rank. Ranks bring the order of documents back under methods without one.
        source: what names it, in any order.
    """
    marks = [] if number is None else [f"[{number}]"]
    marks += [] if source is None else [f"({source})"]
    return " ".join([*marks, text])


class MarkedText:
    """A text in which the markers have been looked for, once.

    Args:
        text: any text.
        trusted: as of `parse`.

    Raises:
        MarkerError: with `trusted`, markers are unbalanced, nested or stray.
    """

    def __init__(self, text: str, *, trusted: bool = False) -> None:
        self.text = text
        self._trusted = trusted
        self._parts, self._strays = marked_parts(text, trusted=trusted)
        self._documents = [part for part in self._parts if part.kind == "doc"]

    def has_documents(self) -> bool:
        """Whether the text holds marked documents."""
        return bool(self._documents)

    def documents(self) -> list[str]:
        """The texts of the marked documents, in order."""
        return [self._inside(part) for part in self._documents]

    def plain(self, start: int = 0, end: int | None = None) -> str:
        """The text from `start` to `end`, in characters, with its documents as plain text."""
        end = len(self.text) if end is None else end
        outside = unescape if self._trusted else str
        pieces: list[str] = []
        for part in self._parts:
            if start <= part.start and part.end <= end:
                pieces += [outside(self.text[start : part.start]), self._inside(part)]
                start = part.end
        return "".join([*pieces, outside(self.text[start:end])])

    def pieces(self) -> list[str | Document]:
        """The documents, and the text before, between and after them as it stands."""
        pieces: list[str | Document] = []
        end = 0
        for part in self._documents:
            pieces += [self.text[end : part.start], Document(self._inside(part))]
            end = part.end
        return [*pieces, self.text[end:]]

    def prompt(self, groups: Literal["single", "last"] = "single") -> ContextPrompt:
        """As `parse` reads it; raises as that does."""
        if not self._documents:
            return ContextPrompt(suffix=self.plain())
        gaps = [self.text[a.end : b.start] for a, b in pairwise(self._documents)]
        # Of the last documents with no words between them.
        first = max((index + 1 for index, gap in enumerate(gaps) if _WORD.search(gap)), default=0)
        if first and groups == "single":
            raise _text_between(self.text, self._documents[first - 1].end, gaps[first - 1])
        group, gaps = self._documents[first:], gaps[first:]
        start, end = group[0].start, group[-1].end
        blank_lines = _BLANK_LINES.match(self.text, end)
        assert blank_lines is not None, "there may be none"
        separator = Counter(gaps).most_common(1)[0][0] if gaps else blank_lines.group()
        end += len(separator) if self.text.startswith(separator, end) else 0
        return ContextPrompt(
            prefix=self.plain(end=start),
            documents=[self._inside(part) for part in group],
            suffix=self.plain(start=end),
            separator=separator,
        )

    @property
    def has_strays(self) -> bool:
        """Whether there are markers that mark nothing."""
        return bool(self._strays)

    @property
    def marked_elsewhere(self) -> bool:
        """Whether whole documents seem to be marked here, with the key of another process."""
        opened = False
        for stray in self._strays:
            if opened and stray.closes:
                return True
            opened = stray.tag is not None and not stray.closes
        return False

    def warn_of_strays(self) -> None:
        """Warn of markers that mark nothing."""
        if any(stray.tag is None and not stray.closes for stray in self._strays):
            warn_caller(UnreadMarkersWarning(_PLAIN_MARKERS))
        elif self._strays:
            warn_caller(UnreadMarkersWarning(_OTHER_MARKERS))

    def _inside(self, part: Marked) -> str:
        return unescape(self.text[part.text_start : part.text_end])


def unmark(text: str) -> str:
    """``text`` with its documents as plain text. What :func:`mark` has not made stays as it is."""
    return MarkedText(text).plain()


def parse(
    text: str, *, groups: Literal["single", "last"] = "single", trusted: bool = False
) -> ContextPrompt:
    """Find the documents in a text with markers.

    Markers count if :func:`mark` made them, in this process or with the same
    ``RAG_MIDDLE_MARKER_KEY``, around this very text. Whatever else looks like a marker is text: a
    question, an answer or the output of a tool cannot add a document. Who copies a marked document
    can repeat it, and no more.

    All documents must stand together, with no words between them. The whitespace or the signs
    (``---``) there are the prompt's separator: the most common gap, the first one on ties. It is
    written after every document, so it is taken off the start of the suffix where it stands there;
    where the suffix starts otherwise, the last document gains a separator. With a single document
    the separator is whatever blank lines follow it.

    A text without documents is all suffix.

    Args:
        text: the marked text.
        groups: ``"single"`` refuses documents with words between them; ``"last"`` takes the
            last documents that stand together and leaves earlier ones in the prefix as plain text
            (earlier turns of a conversation).
        trusted: take all markers, written by hand (``[[rm:doc]]...[[/rm:doc]]``) or by another
            process, and escaped ones (``[[~rm:doc]]``) for what they stand for. For a text whose
            every part is your own or went through `escape`: any other part can add documents.

    Raises:
        MarkerError: the documents do not stand together; with `trusted`, markers are unbalanced,
            nested or stray.

    Warns:
        UnreadMarkersWarning: there are markers that mark nothing.
    """
    marked = MarkedText(text, trusted=trusted)
    marked.warn_of_strays()
    return marked.prompt(groups)


# The same words every time: Python's default filter shows them once, however many messages come.
_PLAIN_MARKERS = (
    "A text holds document markers without a tag: they are read as text. Mark documents with "
    "mark() (LangChain: DocumentPrompt, format_docs or MarkDocuments; LlamaIndex: MarkDocuments). "
    "Where every part of the text is your own, pass parse(text, trusted=True) instead of the text."
)
_OTHER_MARKERS = (
    "A text holds document markers that mark() has not made around that text in this process: they "
    "are read as text. Somebody wrote them, the document was cut or changed after it was marked (a "
    "splitter, a prompt helper that truncates), or another process marked it; for that, set "
    f"{MARKER_KEY_VARIABLE} to the same secret in all processes."
)


def _text_between(text: str, start: int, gap: str) -> MarkerError:
    shown = gap.strip()
    return marker_error(
        f"Documents must stand together, but {shortened(shown, 48)!r} stands between two of them: "
        "separate them by whitespace or signs ('---'), and put words before or after all of them "
        "(a history that goes into one message, to be summarised, goes through unmark() first)",
        text,
        start + gap.index(shown[0]),
    )
