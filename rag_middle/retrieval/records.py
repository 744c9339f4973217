"""Records as loaded, chunks as indexed, and what was skipped."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from rag_middle.documents import Document

__all__ = ["OWN_METADATA", "Chunk", "Record", "Skipped", "content_id", "span_ids"]

OWN_METADATA = ("source", "start", "end", "line", "score")
"""What documents say of themselves: no file may say it in their place."""

_BLOCK = 2**16  # characters in which line ends are counted at once


@dataclass(frozen=True, kw_only=True)
class Record:
    """A text as it was loaded.

    Attributes:
        text: the text, without markup where the format has any.
        source: the file it comes from, relative to the folder that was loaded, with ``/``.
        title: its title, if the file names one; else the name of the file, by which an answer can
            cite it.
        start: characters of the source before the text (a Markdown title line). For ``.txt`` and
            ``.md``, ``Path(source).read_text()[start : start + len(text)] == text``.
        metadata: what else the file says: the page of a PDF (from 1), the line of a ``.jsonl``
            file (from 1) and its other fields.
        titled_by_name: the title is the name of the file, in a ``.jsonl`` file with the line.
        first_line: line of the file, from 1, that the text begins on; None where the file has no
            lines that a reader could go to.
        headings: offset in the text and words of each heading, in order.
    """

    text: str
    source: str
    title: str | None = None
    start: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    titled_by_name: bool = False
    first_line: int | None = None
    headings: tuple[tuple[int, str], ...] = ()

    def location(self, start: int, end: int) -> dict[str, Any]:
        """Where a part of the text stands, for people: lines of the file, and the heading above.

        Args:
            start: offset of the part in the text.
            end: offset after its last character.
        """
        where: dict[str, Any] = {}
        if self.first_line is not None:
            block = start // _BLOCK  # not from the beginning: a text has many thousand parts
            before = self._lines_before[block] + self.text.count("\n", block * _BLOCK, start)
            first = self.first_line + before
            last = first + self.text.count("\n", start, end)
            where = {"first_line": first, "last_line": last}
        above = bisect_right(self.headings, start, key=lambda heading: heading[0])
        if above:
            where["heading"] = self.headings[above - 1][1]
        return where

    @cached_property
    def _lines_before(self) -> list[int]:
        """Line ends before each block of the text."""
        blocks = range(0, len(self.text), _BLOCK)
        counts = (self.text.count("\n", at, at + _BLOCK) for at in blocks)
        return list(accumulate(counts, initial=0))

    @cached_property
    def content_hash(self) -> str:
        """Equal for records with the same title and text, whatever the names of their files.

        Tells which records say the same, and no chunks: a title that is a name is left out.
        """
        return content_id(None if self.titled_by_name else self.title, self.text)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a record, as it is indexed.

    Attributes:
        id: stable as long as the record's title and text, its source and the offsets in it stay.
        text: the part.
        source: as in :class:`Record`.
        title: the record's title.
        start: character offset of the part in the source, as in :class:`Record`.
        end: offset after its last character.
        metadata: the record's.
    """

    id: str
    text: str
    source: str
    title: str | None = None
    start: int = 0
    end: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Chunks come from saved indexes too, and theirs become documents of a prompt."""
        kinds = {"id": str, "text": str, "source": str, "title": str | None, "metadata": Mapping}
        for name, kind in {**kinds, "start": int, "end": int}.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} of a chunk is {getattr(self, name)!r}")

    def render(self) -> str:
        """What is embedded, and what the model will read: the title on a line before the text."""
        return self.document().render()

    def document(self, score: float | None = None) -> Document:
        """The chunk as a document of a prompt; source, offsets and score join its metadata."""
        # Metadata of a caller's own comes first; that of files has no such names.
        metadata = {"source": self.source, "start": self.start, "end": self.end, **self.metadata}
        if score is not None:
            metadata["score"] = score
        return Document(self.text, title=self.title, id=self.id, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """Something that was not loaded.

    Attributes:
        source: the file, or file and line or page.
        reason: why, and what to do about it.
    """

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


def content_id(*parts: str | int | None) -> str:
    """A hash of the parts: 32 hexadecimal digits."""
    # JSON keeps the parts apart, so ("ab", "c") and ("a", "bc") differ.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def span_ids(*parts: str | None) -> Callable[[int, int], str]:
    """Hashes of the parts and two offsets, like `content_id`; the parts are hashed once."""
    of_parts = hashlib.sha256(json.dumps(parts).removesuffix("]").encode())

    def span_id(start: int, end: int) -> str:
        digest = of_parts.copy()
        digest.update(f", {start}, {end}]".encode())
        return digest.hexdigest()[:32]

    return span_id
